/* The callbacks of a Log: functions of Go, whose Log is behind a handle. */
#include "_cgo_export.h"
#include "inband.h"

static void deliver(inband_ctx *ctx, const inband_delivery *delivery, void *user) {
    inbandGoDeliver(ctx, (inband_delivery *)delivery, (uintptr_t)user);
}

static void failed(inband_ctx *ctx, const inband_failure *failure, void *user) {
    inbandGoFailed(ctx, (inband_failure *)failure, (uintptr_t)user);
}

static void state_needed(inband_ctx *ctx, void *user) {
    inbandGoStateNeeded(ctx, (uintptr_t)user);
}

int inband_go_register(inband_ctx *ctx, uintptr_t handle) {
    int code = inband_on_deliver(ctx, deliver, (void *)handle);
    if (code == INBAND_OK)
        code = inband_on_failed(ctx, failed, (void *)handle);
    if (code == INBAND_OK)
        code = inband_on_state_needed(ctx, state_needed, (void *)handle);
    return code;
}
