package xerrors_test

import (
	"errors"
	"fmt"
	"io"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

var errBusy = xerrors.New("busy", "it is taken")

func ExampleNew() {
	err := fmt.Errorf("order 123: %w", errBusy)
	fmt.Println(err)
	fmt.Println(xerrors.CodeOf(err), errors.Is(err, errBusy))
	// Output:
	// order 123: it is taken
	// busy true
}

func ExampleWithCode() {
	err := xerrors.WithCode(io.ErrUnexpectedEOF, "reply_cut_short")
	fmt.Println(err)
	fmt.Println(xerrors.CodeOf(err), errors.Is(err, io.ErrUnexpectedEOF))
	// Output:
	// unexpected EOF
	// reply_cut_short true
}
