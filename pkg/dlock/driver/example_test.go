package driver_test

import (
	"errors"
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A driver says of each error whether the call may have been carried out.
func ExampleClassify() {
	refused := driver.Classify(errors.New("wrong password"), driver.Fatal)
	silent := driver.Classify(errors.New("no answer"), driver.Ambiguous)
	fmt.Println(driver.ClassOf(refused) == driver.Fatal, driver.ClassOf(silent) == driver.Ambiguous)
	// Output: true true
}
