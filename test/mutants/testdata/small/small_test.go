package small

import "testing"

func TestAdd(t *testing.T) {
	if Add(1, 2) != 3 || Add(90, 20) != 100 {
		t.Error("wrong sum")
	}
}

func TestCount(t *testing.T) {
	if Count(3) != 3 {
		t.Error("wrong count")
	}
}

func TestNothing(*testing.T) {}
