package cli

import "testing"

func TestColumnsOf(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "order:1": 7, "–…": 2, "e\u0301": 1, "键": 2, "한국": 4, "かな": 4, "カ": 2, "ｶ": 1, "。": 2, "Ａ！": 4, "🔒": 2, "❤\ufe0f": 1, "é": 1,
	} {
		if got := columnsOf(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
}

// A text that is cut fits, also where a wide rune would stand over the edge.
func TestCut(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{cutEnd("order", 5), "order"},
		{cutEnd("orders", 5), "orde…"},
		{cutEnd("订单订单", 6), "订单…"},
		{cutMiddle("order:12345", 11), "order:12345"},
		{cutMiddle("order:12345", 7), "ord…345"},
		{cutMiddle("订单:12345", 7), "订…345"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
