pub fn version() -> u32 { 1 }
