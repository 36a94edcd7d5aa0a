package oncerobfig_test

import (
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/ceyewan/genesis/adapters/cron/oncerobfig"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

func Example() {
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New())) // in production: Redis or etcd
	if err != nil {
		log.Fatal(err)
	}
	job, err := once.New(locks, "report", time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	report := cron.NewChain(oncerobfig.Wrap(job, cron.DefaultLogger)).Then(cron.FuncJob(func() { fmt.Println("the report is written") }))
	schedule := cron.New()
	if _, err := schedule.AddJob("@hourly", report); err != nil {
		log.Fatal(err)
	}
	schedule.Start()
	report.Run() // as the schedule does
	report.Run() // within the same hour, on this process or another: skipped
	<-schedule.Stop().Done()
	if err := locks.Close(); err != nil { // after the jobs have ended
		log.Fatal(err)
	}
	// Output: the report is written
}
