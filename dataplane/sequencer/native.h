/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build, called by the soft switch, the simulator and the vectors. */
#ifndef INBAND_SEQUENCER_NATIVE_H
#define INBAND_SEQUENCER_NATIVE_H

#include "../ground/native/role.h"
#include "registers.h"

IB_ANSWERING(sequencer);

#endif
