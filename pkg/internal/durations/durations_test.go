package durations_test

import (
	"encoding/json"
	"math"
	"testing"
	"testing/quick"
	"time"

	"github.com/ceyewan/genesis/pkg/internal/durations"
)

type config struct {
	Name  string        `json:"name"`
	Wait  time.Duration `json:"wait"`
	Least time.Duration `json:"least,omitempty"`
	Many  []string      `json:"many,omitempty"`
}

func (c config) MarshalJSON() ([]byte, error)     { return durations.Marshal(c) }
func (c *config) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

func TestMarshal(t *testing.T) {
	for _, tc := range []struct {
		value config
		want  string
	}{
		{config{Name: "a", Wait: 1500 * time.Millisecond}, `{"name":"a","wait":"1.5s"}`},
		{config{Least: -1, Many: []string{"x"}}, `{"name":"","wait":"0s","least":"-1ns","many":["x"]}`},
	} {
		text, err := json.Marshal(tc.value)
		if err != nil || string(text) != tc.want {
			t.Errorf("%s, %v; want %s", text, err, tc.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	same := func(wait, least int64) bool {
		from := config{Wait: time.Duration(wait), Least: time.Duration(least)}
		text, err := json.Marshal(from)
		var back config
		return err == nil && json.Unmarshal(text, &back) == nil && back.Wait == from.Wait && back.Least == from.Least
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	for _, n := range []int64{0, math.MinInt64, math.MaxInt64} {
		if !same(n, n) {
			t.Errorf("%d changes", n)
		}
	}
}

// Fields that are not named, or null, keep their values.
func TestUnmarshalKeepsTheRest(t *testing.T) {
	c := config{Name: "a", Wait: time.Second, Least: time.Minute}
	err := json.Unmarshal([]byte(`{"wait":"2m", "least":null}`), &c)
	if err != nil || c.Name != "a" || c.Wait != 2*time.Minute || c.Least != time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
}

// What cannot be read is an error, and changes nothing.
func TestUnmarshalRefuses(t *testing.T) {
	for _, text := range []string{
		`{"name":"b","wait":5}`, `{"name":"b","wait":"5"}`, `{"name":"b","wait":"soon"}`, `{"name":"b","wait":""}`,
		`{"name":"b","wait":true}`, `{"name":"b","wait":{}}`, `{"name":"b","wait":"9999999h"}`, `{"name":5}`, `{"name":"b","wiat":"5s"}`, `[]`, `"5s"`,
	} {
		c := config{Name: "a", Wait: time.Second}
		if err := json.Unmarshal([]byte(text), &c); err == nil || c.Name != "a" || c.Wait != time.Second {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	var lenient config
	if err := durations.Unmarshal([]byte(`{"name":"b","wiat":"5s"}`), &lenient); err != nil || lenient.Name != "b" {
		t.Errorf("%+v, %v", lenient, err)
	}
	for _, text := range []string{``, `{`, `{} {}`} { // from a caller that is not encoding/json
		if err := durations.Unmarshal([]byte(text), &lenient); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// An error names the field, and the type that the caller knows.
func TestErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"b","wait":5}`:           `wait: a number is no duration such as "1.5s"`,
		`{"least":"5"}`:                   `least: "5" is no duration such as "1.5s"`,
		`{"least":{}}`:                    `least: an object is no duration such as "1.5s"`,
		`{"wait":["5s"]}`:                 `wait: an array is no duration such as "1.5s"`,
		`{"wait":true}`:                   `wait: a bool is no duration such as "1.5s"`,
		`{"name":5}`:                      `json: cannot unmarshal number into Go struct field config.name of type string`,
		`{"name":"b","many":[{"a":"b"}]}`: `json: cannot unmarshal object into Go struct field config.many of type string`,
		`[]`:                              `json: cannot unmarshal array into Go value of type durations_test.config`,
	} {
		var c config
		if err := json.Unmarshal([]byte(text), &c); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
