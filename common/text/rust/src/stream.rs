//! Detokenisation token by token, equal to the tokenizer's decode of the whole.
//!
//! A tokenizer's decoder is a chain of steps over the list of all tokens. Each step here does the same on a stream: it
//! takes one token and gives what is settled by now.

use std::sync::Arc;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

use crate::fault::{invalid, Result};
use crate::tokenizer::Tokenizer;

/// How a step's result for one token depends on the others.
enum Step {
    /// Not at all.
    Each(DecoderWrapper),
    /// On whether it is the first.
    First { decoder: DecoderWrapper, seen: bool },
    /// On whether it is the last: one token waits.
    Last { decoder: DecoderWrapper, waiting: Option<String> },
    /// Runs of tokens like <0x0A> are UTF-8; a run that is not gives one U+FFFD a byte.
    ByteFallback { character: Vec<u8>, broken: bool },
    /// Letters stand for bytes; the bytes of all tokens together are UTF-8, read lossily.
    ByteLevel { bytes: Vec<u8> },
    /// After Fuse the text is one token: at most `left` leading characters `content` go.
    StripText { content: char, left: usize },
    /// No decoder: tokens are joined by spaces.
    Spaces { seen: bool },
}

fn steps_of(decoder: Option<&DecoderWrapper>) -> Result<Vec<Step>> {
    let Some(decoder) = decoder else { return Ok(vec![Step::Spaces { seen: false }]) };
    let mut flat = Vec::new();
    flatten(decoder, &mut flat);
    let (mut steps, mut fused) = (Vec::new(), false);
    for part in flat {
        let step = match part {
            DecoderWrapper::Fuse(_) => {
                fused = true;
                continue;
            }
            DecoderWrapper::Strip(strip) if fused && strip.stop == 0 => {
                Step::StripText { content: strip.content, left: strip.start }
            }
            _ if fused => {
                return Err(invalid("this tokenizer's decoder changes text after fusing it: not streamable"))
            }
            DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => Step::Each(part.clone()),
            DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => {
                Step::First { decoder: part.clone(), seen: false }
            }
            DecoderWrapper::BPE(_) => Step::Last { decoder: part.clone(), waiting: None },
            DecoderWrapper::ByteFallback(_) => Step::ByteFallback { character: Vec::new(), broken: false },
            DecoderWrapper::ByteLevel(_) => {
                fused = true;
                Step::ByteLevel { bytes: Vec::new() }
            }
            _ => return Err(invalid("a CTC decoder belongs to speech models and is not streamable")),
        };
        steps.push(step);
    }
    Ok(steps)
}

fn flatten<'a>(decoder: &'a DecoderWrapper, out: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|d| flatten(d, out)),
        _ => out.push(decoder),
    }
}

fn chain(decoder: &DecoderWrapper, tokens: Vec<String>, at: usize) -> Result<String> {
    let out =
        decoder.decode_chain(tokens).map_err(|e| invalid(format!("the tokenizer cannot decode: {e}")))?;
    Ok(out.into_iter().nth(at).unwrap_or_default())
}

impl Step {
    fn push(&mut self, token: String) -> Result<Option<String>> {
        Ok(match self {
            Step::Each(decoder) => Some(chain(decoder, vec![token], 0)?),
            Step::First { decoder, seen: true } => Some(chain(decoder, vec![String::new(), token], 1)?),
            Step::First { decoder, seen } => {
                *seen = true;
                Some(chain(decoder, vec![token], 0)?)
            }
            Step::Last { decoder, waiting } => match waiting.replace(token) {
                Some(before) => Some(chain(decoder, vec![before, String::new()], 0)?),
                None => None,
            },
            Step::ByteFallback { character, broken } => match fallback_byte(&token) {
                Some(byte) => push_byte(character, broken, byte),
                None => {
                    let rest = "\u{FFFD}".repeat(character.len());
                    character.clear();
                    *broken = false;
                    Some(rest + &token)
                }
            },
            Step::ByteLevel { bytes } => {
                bytes.extend(level_bytes(&token));
                take_lossy(bytes, false)
            }
            Step::StripText { content, left } => {
                let strip = token.chars().take(*left).take_while(|c| c == content).count();
                let rest: String = token.chars().skip(strip).collect();
                *left = if rest.is_empty() { *left - strip } else { 0 };
                Some(rest)
            }
            Step::Spaces { seen } => {
                Some(if std::mem::replace(seen, true) { format!(" {token}") } else { token })
            }
        })
    }

    /// What waits, at the end; the step is then as new, but for `StripText`, which `Stream::finish` rebuilds.
    fn finish(&mut self) -> Result<Option<String>> {
        Ok(match self {
            Step::Last { decoder, waiting } => match waiting.take() {
                Some(token) => Some(chain(decoder, vec![token], 0)?),
                None => None,
            },
            Step::ByteFallback { character, .. } => Some("\u{FFFD}".repeat(character.len())),
            Step::ByteLevel { bytes } => take_lossy(bytes, true),
            _ => None,
        })
    }
}

fn fallback_byte(token: &str) -> Option<u8> {
    if token.len() != 6 || !token.starts_with("<0x") || !token.ends_with('>') {
        return None;
    }
    u8::from_str_radix(token.get(3..5)?, 16).ok()
}

fn push_byte(character: &mut Vec<u8>, broken: &mut bool, byte: u8) -> Option<String> {
    character.push(byte);
    if !*broken {
        match std::str::from_utf8(character) {
            Ok(text) => {
                let text = text.to_owned();
                character.clear();
                return Some(text);
            }
            Err(e) if e.error_len().is_none() => return None,
            Err(_) => *broken = true,
        }
    }
    let text = "\u{FFFD}".repeat(character.len());
    character.clear();
    Some(text)
}

/// The decoded front of `bytes`; an unfinished character stays, unless `all`. U+FFFD stands for each maximal invalid
/// part, as in `String::from_utf8_lossy`.
fn take_lossy(bytes: &mut Vec<u8>, all: bool) -> Option<String> {
    let mut settled = bytes.len();
    if !all {
        let mut from = 0;
        while let Err(e) = std::str::from_utf8(&bytes[from..]) {
            match e.error_len() {
                Some(length) => from += e.valid_up_to() + length,
                None => {
                    settled = from + e.valid_up_to();
                    break;
                }
            }
        }
    }
    let text = String::from_utf8_lossy(&bytes[..settled]).into_owned();
    bytes.drain(..settled);
    Some(text)
}

/// GPT-2's letters for bytes: printable Latin-1 stands for itself, the other 68 bytes are U+0100 on, in order.
fn level_byte(letter: char) -> Option<u8> {
    let plain = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match letter as u32 {
        code if plain(code) => Some(code as u8),
        code @ 0x100..=0x143 => (0..256).filter(|b| !plain(*b)).nth((code - 0x100) as usize).map(|b| b as u8),
        _ => None,
    }
}

/// The bytes of a token; one with a letter outside the table is text of its own.
fn level_bytes(token: &str) -> Vec<u8> {
    token.chars().map(level_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

pub struct Stream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    steps: Vec<Step>,
}

impl Stream {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Result<Self> {
        let steps = steps_of(tokenizer.inner.get_decoder())?;
        Ok(Self { tokenizer, skip_special, steps })
    }

    pub fn push(&mut self, id: u32) -> Result<String> {
        match self.tokenizer.token(id) {
            Some(_) if self.skip_special && self.tokenizer.is_special(id) => Ok(String::new()),
            Some(token) => self.run(0, token),
            None => Ok(String::new()),
        }
    }

    pub fn finish(&mut self) -> Result<String> {
        let mut text = String::new();
        for at in 0..self.steps.len() {
            if let Some(rest) = self.steps[at].finish()? {
                if !rest.is_empty() {
                    text += &self.run(at + 1, rest)?;
                }
            }
        }
        self.steps = steps_of(self.tokenizer.inner.get_decoder())?;
        Ok(text)
    }

    fn run(&mut self, from: usize, mut token: String) -> Result<String> {
        for step in &mut self.steps[from..] {
            match step.push(token)? {
                Some(next) => token = next,
                None => return Ok(String::new()),
            }
        }
        Ok(token)
    }
}

/// The bytes that a token adds in the middle of a text.
pub fn token_bytes(tokenizer: &Tokenizer, token: String) -> Result<Vec<u8>> {
    let mut steps = steps_of(tokenizer.inner.get_decoder())?;
    if steps.iter().any(|step| matches!(step, Step::ByteFallback { .. })) {
        if let Some(byte) = fallback_byte(&token) {
            return Ok(vec![byte]);
        }
    }
    let mut token = token;
    for step in &mut steps {
        match step {
            Step::ByteLevel { .. } => return Ok(level_bytes(&token)),
            Step::First { seen, .. } | Step::Spaces { seen } => *seen = true,
            Step::StripText { left, .. } => *left = 0,
            Step::Last { decoder, .. } => {
                token = chain(decoder, vec![token, String::new()], 0)?;
                continue;
            }
            _ => {}
        }
        token = step.push(token)?.unwrap_or_default();
    }
    Ok(token.into_bytes())
}
