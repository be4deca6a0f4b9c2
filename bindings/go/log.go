// Package inband is a replicated log for your own program: submit, deliver, recover. It is the C library
// (bindings/c/inband.h) on a thread of its own.
//
// A Log is one host of a cluster, with a configuration file as for `inband run`; to submit and deliver, its node needs
// the role "replica". All replicas deliver the same values in the same order, each submitted value once.
//
// All methods may be called from several goroutines.
package inband

/*
#cgo CFLAGS: -I${SRCDIR}/../c
#cgo LDFLAGS: -linband
#include <stdlib.h>
#include "inband.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// ValueLenMaxBytes is the maximum length of a value.
const ValueLenMaxBytes = C.INBAND_VALUE_LEN_MAX_BYTES

// WindowValues is the maximum number of values in flight.
const WindowValues = C.INBAND_WINDOW_VALUES

// DeliveriesMax is the number of deliveries that may wait for Deliver. The host does not take part in the cluster while
// there are as many.
const DeliveriesMax = 65536

var (
	// ErrClosed: the log was closed. The outcome of what was in flight is unknown.
	ErrClosed = errors.New("the log is closed; open it again")
	// ErrNotApplied: the value was not applied and never will be. Submit it again if it is still needed.
	ErrNotApplied = errors.New("not applied")
	// ErrOutcomeUnknown: there was no decision in time. The value may have been applied, may be applied later, or never:
	// check the state before you submit it again.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrInRestoredState: the restored state already includes the value or the instance.
	ErrInRestoredState = errors.New("in the restored state")
	// ErrStateNeeded: this replica has missed more than its peers remember. Copy a peer's state, and call Restore with
	// the position stored with it.
	ErrStateNeeded = errors.New("this replica needs a peer's state: copy it, and call Restore with the position stored with it")
)

// Error is a call that the library refused.
type Error struct {
	// Code is one of enum inband_error.
	Code int
	// Message says what to do.
	Message string
}

func (e *Error) Error() string { return e.Message }

// Instance is a number in the log, from 1.
type Instance uint64

// Delivery is a decided value.
type Delivery struct {
	Instance Instance
	Value    []byte
	// IsNoop, only in the result of Recover: the instance holds no application's value.
	IsNoop bool
	// Position after this delivery, if Options.Positions is set.
	Position []byte
}

// Options of Open.
type Options struct {
	// Saved is the position at which the application's state was stored; nil: it starts with an empty state.
	Saved []byte
	// Positions: each delivery has a position. Store it with the state after that delivery.
	Positions bool
}

// outcome of a submission, a recovery or a restore.
type outcome struct {
	delivery Delivery
	err      error
}

// Log is one host of a cluster.
type Log struct {
	positions  bool
	deliveries chan Delivery
	room       chan struct{} // an element for each value in flight
	closing    chan struct{}
	ended      chan struct{}
	closeOnce  sync.Once

	mutex       sync.Mutex
	ctx         *C.inband_ctx // nil once freed
	requests    []func()
	stateNeeded chan struct{} // closed while a peer's state is needed
	isNeeded    bool
	err         error // why it has ended

	// Only on the log's thread.
	submitted  map[uint64]chan outcome
	recovering map[uint64][]chan outcome
}

// start is where C finds the bytes; NULL if there are none.
func start(bytes []byte) unsafe.Pointer {
	if len(bytes) == 0 {
		return nil
	}
	return unsafe.Pointer(&bytes[0])
}

func lastError(code C.int) error {
	return &Error{int(code), C.GoString(C.inband_last_error())}
}

// Open starts the host that the file describes.
func Open(config string, options Options) (*Log, error) {
	runtime.LockOSThread() // the last error belongs to the thread
	defer runtime.UnlockOSThread()
	path := C.CString(config)
	defer C.free(unsafe.Pointer(path))
	l := &Log{
		positions:   options.Positions,
		deliveries:  make(chan Delivery, DeliveriesMax),
		room:        make(chan struct{}, WindowValues),
		closing:     make(chan struct{}),
		ended:       make(chan struct{}),
		stateNeeded: make(chan struct{}),
		submitted:   map[uint64]chan outcome{},
		recovering:  map[uint64][]chan outcome{},
	}
	var saved unsafe.Pointer
	if options.Saved != nil {
		saved = C.CBytes(options.Saved)
		defer C.free(saved)
	}
	var ctx *C.inband_ctx
	if code := C.inband_create(path, C.INBAND_DATAPLANE_CONFIGURED, saved, C.size_t(len(options.Saved)), &ctx); code < 0 {
		return nil, lastError(code)
	}
	l.ctx = ctx
	go l.run(ctx)
	return l, nil
}

// Submit returns once the value is applied: delivered at this replica, or soon to be returned by Deliver. Errors are
// ErrNotApplied, ErrOutcomeUnknown, ErrInRestoredState, ErrClosed, *Error, or that of ctx: then the outcome is unknown too
// if the value was sent. The order of values is that of Submit calls only if each is called after the former has returned.
func (l *Log) Submit(ctx context.Context, value []byte) error {
	if len(value) > ValueLenMaxBytes {
		return &Error{C.INBAND_ERR_TOO_LONG, fmt.Sprintf("the value has %d bytes, at most %d are possible; split it", len(value), ValueLenMaxBytes)}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return l.err
	case l.room <- struct{}{}:
	}
	value = append([]byte(nil), value...)
	_, err := l.ask(ctx, func(done chan outcome) {
		var ticket C.uint64_t
		code := C.inband_submit(l.ctx, start(value), C.size_t(len(value)), &ticket)
		if code < 0 {
			<-l.room
			done <- outcome{err: lastError(code)}
			return
		}
		l.submitted[uint64(ticket)] = done
	})
	return err
}

// Recover finds out what was decided in an instance, or decides noop there. Do not apply the result: a value that takes
// effect is delivered as always.
func (l *Log) Recover(ctx context.Context, instance Instance, noop []byte) (Delivery, error) {
	noop = append([]byte(nil), noop...)
	return l.ask(ctx, func(done chan outcome) {
		code := C.inband_recover(l.ctx, C.uint64_t(instance), start(noop), C.size_t(len(noop)))
		if code < 0 {
			done <- outcome{err: lastError(code)}
			return
		}
		l.recovering[uint64(instance)] = append(l.recovering[uint64(instance)], done)
	})
}

// Restore continues from a state copied from a peer; saved is the position stored with that state.
func (l *Log) Restore(saved []byte) error {
	saved = append([]byte(nil), saved...)
	_, err := l.ask(context.Background(), func(done chan outcome) {
		code := C.inband_restore(l.ctx, start(saved), C.size_t(len(saved)))
		if code < 0 {
			done <- outcome{err: lastError(code)}
			return
		}
		l.drop() // the restored state includes them
		l.mutex.Lock()
		if l.isNeeded {
			l.isNeeded, l.stateNeeded = false, make(chan struct{})
		}
		l.mutex.Unlock()
		done <- outcome{}
	})
	return err
}

// drop discards what waits for Deliver. Only the log's thread calls it.
func (l *Log) drop() {
	for {
		select {
		case <-l.deliveries:
		default:
			return
		}
	}
}

// Deliver waits for the next value. Errors are ErrClosed, ErrStateNeeded (call Restore, then Deliver again), *Error, or
// that of ctx.
func (l *Log) Deliver(ctx context.Context) (Delivery, error) {
	l.mutex.Lock()
	stateNeeded := l.stateNeeded
	l.mutex.Unlock()
	select { // those before an end or a gap come first
	case delivery := <-l.deliveries:
		return delivery, nil
	default:
	}
	var err error
	select {
	case delivery := <-l.deliveries:
		return delivery, nil
	case <-stateNeeded:
		err = ErrStateNeeded
	case <-l.ended:
		err = l.err
	case <-ctx.Done():
		return Delivery{}, ctx.Err()
	}
	select { // select takes any case that is ready
	case delivery := <-l.deliveries:
		return delivery, nil
	default:
		return Delivery{}, err
	}
}

// Close stops the host. Calls that wait return ErrClosed.
func (l *Log) Close() {
	l.closeOnce.Do(func() { close(l.closing) })
	l.wake()
	<-l.ended
}

func (l *Log) wake() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	C.inband_stop(l.ctx)
}

// ask has the log's thread call `begin`, and waits for the outcome.
func (l *Log) ask(ctx context.Context, begin func(done chan outcome)) (Delivery, error) {
	done := make(chan outcome, 1)
	l.mutex.Lock()
	l.requests = append(l.requests, func() { begin(done) })
	C.inband_stop(l.ctx) // wakes the log's thread; nothing if it has ended
	l.mutex.Unlock()
	select {
	case outcome := <-done:
		return outcome.delivery, outcome.err
	case <-ctx.Done():
		return Delivery{}, ctx.Err()
	case <-l.ended:
	}
	select { // it may have ended after the outcome
	case outcome := <-done:
		return outcome.delivery, outcome.err
	default:
		return Delivery{}, l.err
	}
}
