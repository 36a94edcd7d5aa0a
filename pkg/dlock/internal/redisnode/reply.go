package redisnode

// Text returns v if it is a string, else "".
func Text(v any) string {
	s, _ := v.(string)
	return s
}

// Number returns v if it is an integer, else 0.
func Number(v any) int64 {
	n, _ := v.(int64)
	return n
}
