package htmlreport

import "math"

// A Scale says where values are between the beginning and the end of an axis.
type Scale struct {
	Low, High float64
	Log       bool // powers of ten are equally far from each other; Low is above 0
	Ticks     []float64
}

// Part is 0 at Low and 1 at High. Values outside of them are moved to the nearer end.
func (s *Scale) Part(v float64) float64 {
	part := (v - s.Low) / (s.High - s.Low)
	if s.Log {
		part = math.Log(math.Max(v, s.Low)/s.Low) / math.Log(s.High/s.Low)
	}
	return math.Min(math.Max(part, 0), 1)
}

// Linear begins at zero, where bars begin, and ends at or above most.
func Linear(most float64) Scale {
	if most <= 0 {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.25, 0.5, 1} {
		if most/(step*part) <= 5 {
			step *= part
			break
		}
	}
	if most/step > 5 {
		step *= 2
	}
	s := Scale{High: step * math.Ceil(most/step)}
	for i := 0; float64(i)*step <= s.High*1.0001; i++ {
		s.Ticks = append(s.Ticks, float64(i)*step)
	}
	return s
}

// Decades spans least and most in powers of ten.
func Decades(least, most float64) Scale {
	low := math.Floor(math.Log10(math.Max(least, 1e-7)) + 1e-9)
	high := math.Max(math.Ceil(math.Log10(math.Max(most, 1e-7))-1e-9), low+1)
	s := Scale{Low: math.Pow(10, low), High: math.Pow(10, high), Log: true}
	for e := low; e <= high; e++ {
		s.Ticks = append(s.Ticks, math.Pow(10, e))
	}
	return s
}
