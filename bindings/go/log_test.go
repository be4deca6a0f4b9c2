package inband

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

const patience = 60 * time.Second

// config is that of a replica of a running cluster, from bindings/c/tests/cluster/go.rs.
func config(t *testing.T) string {
	path := os.Getenv("INBAND_GO_TEST_CONFIG")
	if path == "" {
		t.Fatal("no cluster; run cargo test -p inband-c --test cluster go::")
	}
	return path
}

func open(t *testing.T, options Options) (*Log, context.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	log, err := Open(config(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	return log, ctx
}

func deliver(t *testing.T, log *Log, ctx context.Context) Delivery {
	t.Helper()
	delivery, err := log.Deliver(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return delivery
}

// isCode is whether the library refused with this code.
func isCode(err error, code int) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Code == code && refused.Message != ""
}

func TestLogContinuesFromAPosition(t *testing.T) {
	values := [][]byte{{}, []byte("\x00one"), make([]byte, ValueLenMaxBytes)}
	log, ctx := open(t, Options{Positions: true})
	var deliveries []Delivery
	for _, value := range values {
		if err := log.Submit(ctx, value); err != nil {
			t.Fatal(err)
		}
		delivery := deliver(t, log, ctx)
		if !bytes.Equal(delivery.Value, value) {
			t.Fatalf("delivered %q, not %q", delivery.Value, value)
		}
		deliveries = append(deliveries, delivery)
	}
	recovered, err := log.Recover(ctx, deliveries[1].Instance, nil)
	if err != nil || recovered.IsNoop || !bytes.Equal(recovered.Value, values[1]) {
		t.Fatalf("recovered %v, %v", recovered, err)
	}
	beyond := deliveries[2].Instance + 1
	if recovered, err = log.Recover(ctx, beyond, []byte("nothing")); err != nil || !recovered.IsNoop || recovered.Instance != beyond {
		t.Fatalf("recovered %v, %v", recovered, err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if again, err := log.Deliver(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("an answer to Recover was delivered: %v, %v", again, err)
	}
	const savedTooOld = -12
	if err := log.Restore(deliveries[0].Position); !isCode(err, savedTooOld) {
		t.Fatalf("an old position: %v", err)
	}
	log.Close()

	// The application's state has the first delivery only.
	log, ctx = open(t, Options{Saved: deliveries[0].Position})
	for _, expected := range deliveries[1:] {
		if delivery := deliver(t, log, ctx); delivery.Instance != expected.Instance || !bytes.Equal(delivery.Value, expected.Value) {
			t.Fatalf("delivered %v, not %v", delivery, expected)
		}
	}
	log.Close()
}

func TestCloseEndsWhatWaits(t *testing.T) {
	log, ctx := open(t, Options{})
	time.AfterFunc(200*time.Millisecond, log.Close)
	for {
		if _, err := log.Deliver(ctx); errors.Is(err, ErrClosed) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Submit(ctx, []byte("late")); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	log.Close()
}

func TestMistakesAreRefused(t *testing.T) {
	const configError, tooLong, argument, tooFarAhead, damaged = -2, -6, -1, -10, -11
	if _, err := Open("missing.toml", Options{}); !isCode(err, configError) {
		t.Fatal(err)
	}
	if _, err := Open(config(t), Options{Saved: []byte("damaged")}); !isCode(err, damaged) {
		t.Fatal(err)
	}
	log, ctx := open(t, Options{})
	if err := log.Submit(ctx, make([]byte, ValueLenMaxBytes+1)); !isCode(err, tooLong) {
		t.Fatal(err)
	}
	if _, err := log.Recover(ctx, 0, nil); !isCode(err, argument) {
		t.Fatal(err)
	}
	if _, err := log.Recover(ctx, 1<<40, nil); !isCode(err, tooFarAhead) {
		t.Fatal(err)
	}
}

// Values that were delivered come before an error, whichever case select would take, and a restored state includes
// those that still wait.
func TestValuesComeBeforeErrors(t *testing.T) {
	for i := 0; i < 1000; i++ {
		l := &Log{
			deliveries:  make(chan Delivery, 2),
			ended:       make(chan struct{}),
			stateNeeded: make(chan struct{}),
		}
		go func() {
			l.deliveries <- Delivery{Instance: 1}
			close(l.stateNeeded)
		}()
		if delivery, err := l.Deliver(context.Background()); err != nil || delivery.Instance != 1 {
			t.Fatalf("%v, %v instead of the value", delivery, err)
		}
		if _, err := l.Deliver(context.Background()); !errors.Is(err, ErrStateNeeded) {
			t.Fatal(err)
		}
		l.deliveries <- Delivery{Instance: 2}
		l.drop()
		if _, err := l.Deliver(context.Background()); !errors.Is(err, ErrStateNeeded) {
			t.Fatal(err)
		}
	}
}
