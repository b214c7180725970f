#pragma once

#include "common/base/status.h"
#include "node/engine/engine.h"
#include "node/pipeline/step.h"

namespace mesh {

/// What the engine is asked for one segment of a step. kUnimplemented for what no loaded family takes (three
/// rotary axes, side tensors); kInvalidArgument for spans outside of the session.
StatusOr<engine::Segment> to_engine(const pipeline::StepSegment& segment, const pipeline::StepWork& work,
                                    engine::CacheId cache);
/// What the hop table takes of an engine's result.
pipeline::SegmentOutput from_engine(engine::SegmentResult result);

}  // namespace mesh
