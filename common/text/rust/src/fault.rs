//! The errors that cross the boundary.

/// Numbers are part of the ABI: `MeshTextCode` in text_abi.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Ok = 0,
    InvalidArgument = 1,
    NotFound = 2,
    ResourceExhausted = 3,
    Internal = 4,
}

#[derive(Debug)]
pub struct Fault {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Fault>;

pub fn invalid(message: impl Into<String>) -> Fault {
    Fault { code: Code::InvalidArgument, message: message.into() }
}

pub fn not_found(message: impl Into<String>) -> Fault {
    Fault { code: Code::NotFound, message: message.into() }
}

pub fn exhausted(message: impl Into<String>) -> Fault {
    Fault { code: Code::ResourceExhausted, message: message.into() }
}
