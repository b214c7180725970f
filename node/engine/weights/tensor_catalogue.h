#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/safetensors/header.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::hub {
class Checkpoint;
}

namespace mesh::engine {

/// How a tensor lies on disk.
struct StoredTensor {
  Quantization quantization = Quantization::kNone;
  Element element = Element::kBf16;  ///< kBf16, kF16 or kF32 when not quantised
  std::uint64_t bytes = 0;           ///< of `names` together
  std::vector<std::string> names;    ///< of the tensor, then of what a quantised one has beside it
};

/// What a quantised tensor has on disk, or, if that does not fit, why; `problem` names the tensor.
struct FoundTensor {
  StoredTensor tensor;
  std::string problem;
};

/// Which tensors of a checkpoint a model's plans mean. Reads headers only.
class TensorCatalogue {
 public:
  /// Finds the prefix and checks that every name in the checkpoint belongs to the model or may be ignored.
  /// kInvalidArgument names the tensors that are left over.
  static StatusOr<TensorCatalogue> make(hub::Checkpoint& checkpoint, const DecoderSpec& spec);

  std::string disk_name(const TensorSource& source) const {
    return source.prefixed ? prefix_ + source.name : source.name;
  }
  /// kInvalidArgument names all of `sources` that are missing, of a wrong shape or of a data type other than
  /// BF16, F16 and F32 (or those of the model's stored quantization); the checkpoint's own errors as they
  /// come.
  Status check(hub::Checkpoint& checkpoint, const std::vector<const TensorSource*>& sources);
  /// After a check() that passed.
  const StoredTensor& stored(const TensorSource& source) const { return stored_.at(disk_name(source)); }
  Element element(const TensorSource& source) const { return stored(source).element; }
  std::uint64_t bytes(const TensorSource& source) const { return stored(source).bytes; }

 private:
  StatusOr<FoundTensor> find(hub::Checkpoint& checkpoint, const TensorSource& source) const;

  std::string prefix_;
  Quantization quantization_ = Quantization::kNone;
  KeptModules kept_;
  std::map<std::string, StoredTensor> stored_;
};

/// The tensors of a plan, in the order in which they are read.
std::vector<const TensorSource*> sources_of(const MatrixPlan& plan);
std::vector<const TensorSource*> sources_of(const NormPlan& plan);
std::vector<const TensorSource*> sources_of(const LayerPlan& plan);

}  // namespace mesh::engine
