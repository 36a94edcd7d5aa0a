package oncegocron_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/ceyewan/genesis/adapters/cron/oncegocron"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func Example() {
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New())) // in production: Redis or etcd
	if err != nil {
		log.Fatal(err)
	}
	locker, err := oncegocron.NewLocker(locks, time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	_, err = scheduler.NewJob(gocron.CronJob("0 * * * *", false), gocron.NewTask(func() {
		fmt.Println("the report is written")
		close(done)
	}), gocron.WithName("report"), gocron.WithStartAt(gocron.WithStartImmediately()))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	<-done
	if err := errors.Join(scheduler.Shutdown(), locks.Close()); err != nil { // in this order
		log.Fatal(err)
	}
	// Output: the report is written
}
