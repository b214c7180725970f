//! Tokenizer and chat templates behind the C ABI of `common/text/text_abi.h`.

pub mod abi;
pub mod fault;
pub mod stream;
pub mod template;
pub mod tokenizer;
