package etcdlock

// AlwaysBatch sends also a lone call as a batch.
func AlwaysBatch() Option { return func(o *opener) { o.alwaysBatch = true } }
