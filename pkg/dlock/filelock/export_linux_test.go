package filelock

var (
	JudgeMagic  = judgeMagic
	ParseEvents = parseEvents
)
