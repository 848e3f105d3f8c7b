package runner

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var intervals = Config{MinInterval: time.Second, RetryInterval: 5 * time.Second, MaxInterval: time.Minute}

// start runs r in a synctest bubble. It records the start times of runs in seconds since
// the beginning.
func start(t *testing.T, cfg Config, fail func(run int) error) (*Runner, *[]int, context.CancelFunc) {
	t.Helper()
	var runs []int
	begin := time.Now()
	r := New(cfg, func(context.Context) error {
		runs = append(runs, int(time.Since(begin)/time.Second))
		if fail == nil {
			return nil
		}
		return fail(len(runs))
	})
	ctx, cancel := context.WithCancel(t.Context())
	go r.Run(ctx)
	synctest.Wait()
	return r, &runs, cancel
}

func TestNothingRunsBeforeThePoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, runs, cancel := start(t, intervals, nil)
		defer cancel()
		time.Sleep(time.Hour)
		if len(*runs) != 0 {
			t.Errorf("runs at %v, want none", *runs)
		}
	})
}

func TestPokesWithinMinIntervalShareARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, runs, cancel := start(t, intervals, nil)
		defer cancel()
		for range 10 {
			r.Poke()
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)

		if want := []int{0, 1, 2, 3}; !slices.Equal(*runs, want) {
			t.Errorf("runs at %v, want %v", *runs, want)
		}
	})
}

func TestSettleCoalescesPokes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := intervals
		cfg.Delay = time.Second
		r, runs, cancel := start(t, cfg, nil)
		defer cancel()
		for range 4 {
			r.Poke()
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()

		if want := []int{1}; !slices.Equal(*runs, want) {
			t.Errorf("runs at %v, want %v", *runs, want)
		}
	})
}

func TestPokeNowDoesNotWait(t *testing.T) {
	cfg := intervals
	cfg.Delay = 2 * time.Second
	for _, tt := range []struct {
		name  string
		after []time.Duration // Poke, and then PokeNow
		want  []int
	}{
		{"while a run settles", []time.Duration{10 * time.Second, time.Second}, []int{11}},
		{"within the interval", []time.Duration{10 * time.Second, 2 * time.Second}, []int{12, 12}},
		{"after it", []time.Duration{10 * time.Second, 20 * time.Second}, []int{12, 30}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, runs, cancel := start(t, cfg, nil)
				defer cancel()
				time.Sleep(tt.after[0])
				r.Poke()
				time.Sleep(tt.after[1])
				synctest.Wait()
				r.PokeNow()
				time.Sleep(10 * time.Second)
				synctest.Wait()

				if !slices.Equal(*runs, tt.want) {
					t.Errorf("runs at %v, want %v", *runs, tt.want)
				}
			})
		})
	}
}

func TestPokeDuringRunIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *Runner
		runs := 0
		r = New(Config{RetryInterval: time.Second}, func(context.Context) error {
			runs++
			if runs == 1 {
				r.Poke()
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		r.Poke()
		synctest.Wait()

		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
	})
}

func TestFailureIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, runs, cancel := start(t, intervals, func(run int) error {
			if run < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		defer cancel()
		r.Poke()
		time.Sleep(30 * time.Second)
		synctest.Wait()

		if want := []int{0, 5, 10}; !slices.Equal(*runs, want) {
			t.Errorf("runs at %v, want %v", *runs, want)
		}
	})
}

func TestRetryWaitsForMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, runs, cancel := start(t, Config{MinInterval: 3 * time.Second, RetryInterval: time.Second}, func(run int) error {
			if run < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		defer cancel()
		r.Poke()
		time.Sleep(30 * time.Second)
		synctest.Wait()

		if want := []int{0, 3, 6}; !slices.Equal(*runs, want) {
			t.Errorf("runs at %v, want %v", *runs, want)
		}
	})
}

func TestRunsRepeatAtMaxInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, runs, cancel := start(t, intervals, nil)
		defer cancel()
		r.Poke()
		time.Sleep(150 * time.Second)
		synctest.Wait()

		if want := []int{0, 60, 120}; !slices.Equal(*runs, want) {
			t.Errorf("runs at %v, want %v", *runs, want)
		}
	})
}

func TestRunEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(intervals, func(context.Context) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		r.Poke()
		synctest.Wait()
		cancel()
		<-done
	})
}

func TestConfigValidate(t *testing.T) {
	err := Config{MinInterval: -1, Delay: -1, MaxInterval: -1}.Validate()
	want := "MinInterval is negative\nDelay is negative\nRetryInterval is not positive\nMaxInterval is negative"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
