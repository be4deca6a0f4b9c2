package inband

/*
#include "inband.h"

int inband_go_register(inband_ctx *ctx, uintptr_t handle);
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// run is the log's thread, which alone uses the context.
func (l *Log) run(ctx *C.inband_ctx) {
	runtime.LockOSThread()
	handle := cgo.NewHandle(l)
	err := ErrClosed
	if code := C.inband_go_register(ctx, C.uintptr_t(handle)); code < 0 {
		err = lastError(code)
	}
	for err == ErrClosed && !l.isClosing() {
		for _, request := range l.takeRequests() {
			request()
		}
		if code := C.inband_run_once(ctx, -1); code < 0 && code != C.INBAND_ERR_STOPPED {
			err = lastError(code)
		}
	}
	l.mutex.Lock()
	l.err, l.ctx = err, nil
	l.mutex.Unlock()
	C.inband_free(ctx)
	handle.Delete()
	close(l.ended)
}

func (l *Log) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

func (l *Log) takeRequests() []func() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	taken := l.requests
	l.requests = nil
	return taken
}

// endSubmission makes room for another value.
func (l *Log) endSubmission(ticket uint64, end outcome) {
	if done, found := l.submitted[ticket]; found {
		delete(l.submitted, ticket)
		<-l.room
		done <- end
	}
}

func (l *Log) endRecovery(instance uint64, end outcome) {
	for _, done := range l.recovering[instance] {
		done <- end
	}
	delete(l.recovering, instance)
}

// position is called only from a delivery, where it includes that value.
func position(ctx *C.inband_ctx) ([]byte, error) {
	length := C.inband_save(ctx, nil, 0)
	if length < 0 {
		return nil, lastError(C.int(length))
	}
	saved := make([]byte, length)
	if written := C.inband_save(ctx, unsafe.Pointer(&saved[0]), C.size_t(length)); written != length {
		return nil, lastError(C.int(written))
	}
	return saved, nil
}

//export inbandGoDeliver
func inbandGoDeliver(ctx *C.inband_ctx, seen *C.inband_delivery, handle C.uintptr_t) {
	l := cgo.Handle(handle).Value().(*Log)
	delivery := Delivery{
		Instance: Instance(seen.instance),
		Value:    C.GoBytes(unsafe.Pointer(seen.value), C.int(seen.value_len_bytes)),
		IsNoop:   seen.kind == C.INBAND_NOOP,
	}
	l.endRecovery(uint64(seen.instance), outcome{delivery: delivery})
	if seen.kind != C.INBAND_NEW {
		return
	}
	if l.positions {
		saved, err := position(ctx)
		if err != nil {
			panic(fmt.Sprintf("a position of a delivery: %v", err)) // the library's fault: it always has one
		}
		delivery.Position = saved
	}
	select {
	case l.deliveries <- delivery:
	case <-l.closing:
	}
	l.endSubmission(uint64(seen.ticket), outcome{})
}

//export inbandGoFailed
func inbandGoFailed(_ *C.inband_ctx, seen *C.inband_failure, handle C.uintptr_t) {
	l := cgo.Handle(handle).Value().(*Log)
	kinds := map[C.int]error{
		C.INBAND_NOT_APPLIED:       ErrNotApplied,
		C.INBAND_OUTCOME_UNKNOWN:   ErrOutcomeUnknown,
		C.INBAND_IN_RESTORED_STATE: ErrInRestoredState,
	}
	end := outcome{err: fmt.Errorf("%w: %s", kinds[seen.outcome], C.GoString(seen.message))}
	l.endSubmission(uint64(seen.ticket), end)
	l.endRecovery(uint64(seen.instance), end)
}

//export inbandGoStateNeeded
func inbandGoStateNeeded(_ *C.inband_ctx, handle C.uintptr_t) {
	l := cgo.Handle(handle).Value().(*Log)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.isNeeded {
		l.isNeeded = true
		close(l.stateNeeded)
	}
}
