package soak

import "math"

// A point is a value at a time, in hours.
type point struct{ at, value float64 }

// A Fit is a straight line through some points, by least squares.
type Fit struct {
	N       int     `json:"n"` // points
	Mean    float64 `json:"mean"`
	PerHour float64 `json:"per_hour"`
	// Low and High bound PerHour with a probability of 95 %.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Growth is how much the line rises from the first point to the last.
	Growth float64 `json:"growth"`
}

// minPoints is how many points a Fit needs to say anything.
const minPoints = 5

// fit draws the line. ok is false if there are too few points.
func fit(points []point) (f Fit, ok bool) {
	n := float64(len(points))
	if len(points) < minPoints {
		return Fit{N: len(points)}, false
	}
	var at, value float64
	for _, p := range points {
		at += p.at / n
		value += p.value / n
	}
	var xx, xy float64
	for _, p := range points {
		xx += (p.at - at) * (p.at - at)
		xy += (p.at - at) * (p.value - value)
	}
	if xx == 0 {
		return Fit{N: len(points), Mean: value}, false
	}
	slope, rest := xy/xx, 0.0
	for _, p := range points {
		off := p.value - value - slope*(p.at-at)
		rest += off * off
	}
	half := quantile(n-2) * math.Sqrt(rest/(n-2)/xx)
	span := points[len(points)-1].at - points[0].at
	return Fit{
		N: len(points), Mean: value, PerHour: slope, Low: slope - half, High: slope + half, Growth: slope * span,
	}, true
}

// quantile is that of Student's distribution for 97.5 %, by the expansion of Cornish
// and Fisher, which is right to a hundredth with five degrees of freedom or more.
func quantile(freedom float64) float64 {
	const z = 1.959964
	const z3, z5, z7 = z * z * z, z * z * z * z * z, z * z * z * z * z * z * z
	return z + (z3+z)/(4*freedom) + (5*z5+16*z3+3*z)/(96*freedom*freedom) +
		(3*z7+19*z5+17*z3-15*z)/(384*freedom*freedom*freedom)
}

// maxBlocks is how many means are made of a long series.
const maxBlocks = 10

// blocks replaces neighbours by their mean. Samples that are taken soon after each other
// resemble each other, and an interval that counts each of them would be too narrow.
func blocks(points []point) []point {
	if len(points) < 2*maxBlocks {
		return points
	}
	means := make([]point, maxBlocks)
	for i := range means {
		part := points[i*len(points)/maxBlocks : (i+1)*len(points)/maxBlocks]
		for _, p := range part {
			means[i].at += p.at / float64(len(part))
			means[i].value += p.value / float64(len(part))
		}
	}
	return means
}
