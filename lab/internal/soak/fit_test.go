package soak

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// An hour of samples, as one half of a run has them.
var hour = Plan{Backends: []string{"redis"}, Duration: 2 * time.Hour}

// samplesOf makes a half of samples of one series, every so many seconds.
func samplesOf(series string, rest bool, step float64, value func(hours float64) float64) (all []Sample) {
	for at := 0.0; at < 3600; at += step {
		all = append(all, Sample{Backend: "redis", At: at, Rest: rest, Figures: map[string]float64{series: value(at / 3600)}})
	}
	return all
}

func verdictOf(t *testing.T, samples []Sample) Line {
	t.Helper()
	r := NewReport(hour, samples)
	if len(r.Lines) != 1 {
		t.Fatalf("%d lines: %+v", len(r.Lines), r.Lines)
	}
	return r.Lines[0]
}

// A line without noise is found exactly.
func TestFitOfALine(t *testing.T) {
	var points []point
	for i := range 10 {
		points = append(points, point{float64(i) / 10, 7 + 100*float64(i)/10})
	}
	f, ok := fit(points)
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	if !ok || !near(f.PerHour, 100) || !near(f.Low, 100) || !near(f.High, 100) || !near(f.Growth, 90) || !near(f.Mean, 52) {
		t.Errorf("%v, %+v", ok, f)
	}
	if _, ok := fit(points[:minPoints-1]); ok {
		t.Error("a fit of too few points")
	}
	if _, ok := fit(make([]point, 10)); ok {
		t.Error("a fit of points at one time")
	}
}

// The intervals are those of Student's distribution.
func TestQuantile(t *testing.T) {
	for freedom, want := range map[float64]float64{5: 2.571, 8: 2.306, 10: 2.228, 30: 2.042, 1000: 1.962} {
		if got := quantile(freedom); math.Abs(got-want) > 0.01 {
			t.Errorf("%v degrees of freedom: %.3f, want %.3f", freedom, got, want)
		}
	}
}

// An interval of 95 % misses the true slope in about 5 % of all cases.
func TestIntervalCovers(t *testing.T) {
	r, missed := rand.New(rand.NewPCG(1, 1)), 0
	const cases = 2000
	for range cases {
		var points []point
		for i := range 18 {
			points = append(points, point{float64(i), 3*float64(i) + r.NormFloat64()})
		}
		f, _ := fit(points)
		if f.Low > 3 || f.High < 3 {
			missed++
		}
	}
	if missed < cases*3/100 || missed > cases*7/100 {
		t.Errorf("%d of %d intervals miss the slope", missed, cases)
	}
}

// A leak of 100 goroutines in an hour is found in spite of noise, and so is one of a single
// goroutine in a rest.
func TestLeakIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for name, samples := range map[string][]Sample{
		"100 goroutines at work": samplesOf(goroutines, false, 10, func(h float64) float64 { return 60 + 100*h + 10*r.NormFloat64() }),
		"4 goroutines at rest":   samplesOf(goroutines, true, 180, func(h float64) float64 { return 60 + math.Floor(4*h) }),
		"2 MiB at rest":          samplesOf(heap, true, 180, func(h float64) float64 { return 4<<20 + h*(2<<20) + 2e4*r.NormFloat64() }),
		"a key for each name":    samplesOf(lockKeys, true, 180, func(h float64) float64 { return 3000 * h }),
	} {
		l := verdictOf(t, samples)
		if l.Verdict != grows {
			t.Errorf("%s: %+v", name, l)
		}
		if (Report{Lines: []Line{l}}).OK() {
			t.Errorf("%s: a report with a leak is OK", name)
		}
	}
}

// Noise is no leak, also if samples resemble those before them.
func TestNoiseIsNoLeak(t *testing.T) {
	const cases = 300
	for name, bound := range map[string]int{heap: cases / 20, goroutines: cases / 20} {
		wrong := 0
		for seed := range uint64(cases) {
			r, drift := rand.New(rand.NewPCG(seed, 3)), 0.0
			size := map[string]float64{heap: 1 << 20, goroutines: 5}[name]
			l := verdictOf(t, samplesOf(name, false, 10, func(float64) float64 {
				drift = 0.8*drift + r.NormFloat64()
				return size * (10 + drift)
			}))
			if l.Verdict == grows {
				wrong++
			}
		}
		if wrong > bound {
			t.Errorf("%s: %d of %d series of noise were taken for a leak", name, wrong, cases)
		}
	}
}

// What stays is flat, what becomes less is no leak, and fences are kept by design.
func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		series string
		value  func(float64) float64
		want   string
	}{
		"constant":           {goroutines, func(float64) float64 { return 33 }, flat},
		"less":               {descriptors, func(h float64) float64 { return 50 - 20*h }, shrinks},
		"less than counts":   {heap, func(h float64) float64 { return 5e6 + 1e4*h }, flat},
		"fences":             {fenceKeys, func(h float64) float64 { return 9000 * h }, byDesign},
		"names":              {names, func(h float64) float64 { return 9000 * h }, noted},
		"one key in an hour": {tombstones, func(h float64) float64 { return h }, grows},
	} {
		if l := verdictOf(t, samplesOf(c.series, true, 180, c.value)); l.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", name, l, c.want)
		}
	}
	if l := verdictOf(t, samplesOf(goroutines, true, 1200, func(float64) float64 { return 1 })); l.Verdict != tooFew {
		t.Errorf("two samples: %+v", l)
	}
}

// The warm-up is left out.
func TestWarmUpIsLeftOut(t *testing.T) {
	l := verdictOf(t, samplesOf(heap, false, 10, func(h float64) float64 { return 1e7 * min(h, warmUp) }))
	if l.Verdict != flat {
		t.Errorf("%+v", l)
	}
}
