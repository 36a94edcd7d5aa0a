// Package durations writes structs as JSON with durations as text, such as "1.5s", and
// reads them. encoding/json alone has a number of nanoseconds, which is hard to write by hand,
// and cannot read what files of configuration have.
package durations

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"time"
)

// Marshal writes a struct whose fields are exported. Methods of its type are not called.
func Marshal(v any) ([]byte, error) {
	from := reflect.ValueOf(v)
	to := reflect.New(withText(from.Type())).Elem()
	copyFields(to, from)
	return json.Marshal(to.Interface())
}

// Unmarshal reads what Marshal writes into the struct that to points to. Fields that the
// text does not name stay as they are.
func Unmarshal(text []byte, to any) error { return unmarshal(text, to, false) }

// UnmarshalKnown is Unmarshal that refuses a field which is not known. A decoder that was
// told to refuse them cannot tell an UnmarshalJSON.
func UnmarshalKnown(text []byte, to any) error { return unmarshal(text, to, true) }

func unmarshal(text []byte, to any, known bool) error {
	into := reflect.ValueOf(to).Elem()
	read := reflect.New(withText(into.Type()))
	copyFields(read.Elem(), into)
	d := json.NewDecoder(bytes.NewReader(text))
	if known {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(read.Interface()); err != nil {
		return explain(err, into.Type())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	copyFields(into, read.Elem())
	return nil
}

// explain says what an error means for a caller, who does not know the types of this package: t has
// another name, or none.
func explain(err error, t reflect.Type) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Type == textType {
		return fmt.Errorf("%s: %s is no duration such as %q", wrong.Field, wrong.Value, "1.5s")
	}
	named := *wrong
	if named.Type == withText(t) {
		named.Type = t
	}
	if named.Struct == "" && named.Field != "" {
		named.Struct = t.Name()
	}
	return &named
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[duration]()
)

// withText is a struct type with the fields of t, in which durations are text.
func withText(t reflect.Type) reflect.Type {
	fields := make([]reflect.StructField, t.NumField())
	for i := range fields {
		fields[i] = t.Field(i)
		if fields[i].Type == durationType {
			fields[i].Type = textType
		}
	}
	return reflect.StructOf(fields)
}

func copyFields(to, from reflect.Value) {
	for i := range from.NumField() {
		to.Field(i).Set(from.Field(i).Convert(to.Field(i).Type()))
	}
}

// A duration is one as text.
type duration time.Duration

func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON refuses a number: it has no unit. encoding/json adds the name of the field to the
// error.
func (d *duration) UnmarshalJSON(raw []byte) error {
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil {
		return &json.UnmarshalTypeError{Value: kindOf(raw), Type: textType}
	}
	if text == nil { // null changes nothing, as everywhere
		return nil
	}
	parsed, err := time.ParseDuration(*text)
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(*text), Type: textType}
	}
	*d = duration(parsed)
	return nil
}

// kindOf names the kind of a JSON value that is neither text nor null.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a bool"
	}
	return "a number"
}
