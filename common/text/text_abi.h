#pragma once

// The C ABI of rust/, used by the .cc files of this room alone. check_abi.py compares it with
// rust/src/abi.rs.
//
// Functions that can fail return a MeshTextCode; on failure they fill `error` with a message and nothing
// else, on success they fill their outputs and leave `error`. Filled buffers go back through mesh_text_free.
// Pointers to inputs may be null when their size is 0. Nothing unwinds out of these functions.

#include <stddef.h>
#include <stdint.h>

typedef struct MeshTokenizer MeshTokenizer;
typedef struct MeshStream MeshStream;
typedef struct MeshTemplate MeshTemplate;

typedef struct MeshBuffer {
  uint8_t* data;
  size_t size;
} MeshBuffer;

typedef enum MeshTextCode {
  MESH_TEXT_OK = 0,
  MESH_TEXT_INVALID_ARGUMENT = 1,
  MESH_TEXT_NOT_FOUND = 2,
  MESH_TEXT_RESOURCE_EXHAUSTED = 3,
  MESH_TEXT_INTERNAL = 4,  ///< a panic of the library, caught
} MeshTextCode;

#ifdef __cplusplus
extern "C" {
#endif

void mesh_text_free(MeshBuffer buffer);

// Tokenizers may be used from any number of threads at once.
int32_t mesh_text_tokenizer_new(const uint8_t* json, size_t json_size, const uint8_t* config,
                                size_t config_size, MeshTokenizer** out, MeshBuffer* error);
void mesh_text_tokenizer_free(MeshTokenizer* tokenizer);
/// `ids`: uint32_t values in the host's byte order.
int32_t mesh_text_encode(const MeshTokenizer* tokenizer, const uint8_t* data, size_t size, bool add_special,
                         MeshBuffer* ids, MeshBuffer* error);
int32_t mesh_text_decode(const MeshTokenizer* tokenizer, const uint32_t* ids, size_t count, bool skip_special,
                         MeshBuffer* out, MeshBuffer* error);
int32_t mesh_text_token(const MeshTokenizer* tokenizer, uint32_t id, MeshBuffer* out, MeshBuffer* error);
int32_t mesh_text_token_bytes(const MeshTokenizer* tokenizer, uint32_t id, MeshBuffer* out,
                              MeshBuffer* error);
int32_t mesh_text_token_id(const MeshTokenizer* tokenizer, const uint8_t* data, size_t size, uint32_t* id,
                           MeshBuffer* error);
bool mesh_text_is_special(const MeshTokenizer* tokenizer, uint32_t id);
size_t mesh_text_vocab_size(const MeshTokenizer* tokenizer);

// A stream keeps its tokenizer alive and is used by one thread at a time.
int32_t mesh_text_stream_new(const MeshTokenizer* tokenizer, bool skip_special, MeshStream** out,
                             MeshBuffer* error);
void mesh_text_stream_free(MeshStream* stream);
int32_t mesh_text_stream_push(MeshStream* stream, uint32_t id, MeshBuffer* out, MeshBuffer* error);
int32_t mesh_text_stream_finish(MeshStream* stream, MeshBuffer* out, MeshBuffer* error);

// Templates may be used from any number of threads at once. `variables` is a JSON object.
int32_t mesh_text_template_new(const uint8_t* source, size_t size, MeshTemplate** out, MeshBuffer* error);
void mesh_text_template_free(MeshTemplate* tmpl);
int32_t mesh_text_template_render(const MeshTemplate* tmpl, const uint8_t* variables, size_t size,
                                  int64_t now_unix_seconds, uint64_t steps, size_t output_bytes,
                                  MeshBuffer* out, MeshBuffer* error);

#ifdef __cplusplus
}
#endif
