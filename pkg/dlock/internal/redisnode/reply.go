package redisnode

// Text is a string of a reply, "" if it is none.
func Text(v any) string {
	s, _ := v.(string)
	return s
}

// Number is an integer of a reply, 0 if it is none.
func Number(v any) int64 {
	n, _ := v.(int64)
	return n
}
