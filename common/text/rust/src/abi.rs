//! The C ABI; `text_abi.h` documents it, and `check_abi.py` compares the two. No function lets a panic out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use crate::fault::{invalid, not_found, Code, Fault, Result};
use crate::stream::{token_bytes, Stream};
use crate::template::{Limits, Template};
use crate::tokenizer::Tokenizer;

#[repr(C)]
pub struct MeshBuffer {
    pub data: *mut u8,
    pub size: usize,
}

pub struct MeshTokenizer(Arc<Tokenizer>);
pub struct MeshStream(Stream);
pub struct MeshTemplate(Template);

fn give(bytes: Vec<u8>, out: *mut MeshBuffer) {
    let bytes = bytes.into_boxed_slice();
    let size = bytes.len();
    let data = Box::into_raw(bytes).cast::<u8>();
    // SAFETY: the caller passes a buffer to fill.
    unsafe { *out = MeshBuffer { data, size } };
}

fn run(error: *mut MeshBuffer, work: impl FnOnce() -> Result<()>) -> i32 {
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Code::Ok as i32,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Fault { code: Code::Internal, message: format!("the text library failed: {text}") }
        }
    };
    give(fault.message.into_bytes(), error);
    fault.code as i32
}

unsafe fn slice<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

unsafe fn text<'a>(data: *const u8, size: usize) -> Result<&'a str> {
    std::str::from_utf8(slice(data, size)).map_err(|e| invalid(format!("the text is not UTF-8: {e}")))
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_free(buffer: MeshBuffer) {
    if !buffer.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.data, buffer.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_tokenizer_new(
    json: *const u8,
    json_size: usize,
    config: *const u8,
    config_size: usize,
    out: *mut *mut MeshTokenizer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let tokenizer = Tokenizer::load(slice(json, json_size), slice(config, config_size))?;
        *out = Box::into_raw(Box::new(MeshTokenizer(Arc::new(tokenizer))));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_tokenizer_free(tokenizer: *mut MeshTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_encode(
    tokenizer: *const MeshTokenizer,
    data: *const u8,
    size: usize,
    add_special: bool,
    ids: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let encoded = (*tokenizer).0.encode(text(data, size)?, add_special)?;
        give(encoded.into_iter().flat_map(u32::to_ne_bytes).collect(), ids);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_decode(
    tokenizer: *const MeshTokenizer,
    ids: *const u32,
    count: usize,
    skip_special: bool,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let ids = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
        give((*tokenizer).0.decode(ids, skip_special)?.into_bytes(), out);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_token(
    tokenizer: *const MeshTokenizer,
    id: u32,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        give(token_of(&(*tokenizer).0, id)?.into_bytes(), out);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_token_bytes(
    tokenizer: *const MeshTokenizer,
    id: u32,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let token = token_of(&(*tokenizer).0, id)?;
        give(token_bytes(&(*tokenizer).0, token)?, out);
        Ok(())
    })
}

fn token_of(tokenizer: &Tokenizer, id: u32) -> Result<String> {
    tokenizer.token(id).ok_or_else(|| not_found(format!("the vocabulary has no token of id {id}")))
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_token_id(
    tokenizer: *const MeshTokenizer,
    data: *const u8,
    size: usize,
    id: *mut u32,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        *id = (*tokenizer).0.id_of(text(data, size)?)?;
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_is_special(tokenizer: *const MeshTokenizer, id: u32) -> bool {
    catch_unwind(AssertUnwindSafe(|| (&(*tokenizer).0).is_special(id))).unwrap_or(false)
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_vocab_size(tokenizer: *const MeshTokenizer) -> usize {
    catch_unwind(AssertUnwindSafe(|| (&(*tokenizer).0).inner.get_vocab_size(true))).unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_stream_new(
    tokenizer: *const MeshTokenizer,
    skip_special: bool,
    out: *mut *mut MeshStream,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let stream = Stream::new((*tokenizer).0.clone(), skip_special)?;
        *out = Box::into_raw(Box::new(MeshStream(stream)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_stream_free(stream: *mut MeshStream) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_stream_push(
    stream: *mut MeshStream,
    id: u32,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        give((*stream).0.push(id)?.into_bytes(), out);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_stream_finish(
    stream: *mut MeshStream,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        give((*stream).0.finish()?.into_bytes(), out);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_template_new(
    source: *const u8,
    size: usize,
    out: *mut *mut MeshTemplate,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let template = Template::new(text(source, size)?)?;
        *out = Box::into_raw(Box::new(MeshTemplate(template)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_template_free(template: *mut MeshTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn mesh_text_template_render(
    template: *const MeshTemplate,
    variables: *const u8,
    size: usize,
    now_unix_seconds: i64,
    steps: u64,
    output_bytes: usize,
    out: *mut MeshBuffer,
    error: *mut MeshBuffer,
) -> i32 {
    run(error, || {
        let limits = Limits { steps, output_bytes };
        give((*template).0.render(text(variables, size)?, now_unix_seconds, limits)?.into_bytes(), out);
        Ok(())
    })
}
