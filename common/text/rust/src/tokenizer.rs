//! A tokenizer as transformers sets it up from tokenizer.json and tokenizer_config.json: the second adds tokens that the
//! first lacks; its add_bos_token and add_eos_token have no effect beside a tokenizer.json.

use std::str::FromStr;

use serde_json::Value;
use tokenizers::AddedToken;

use crate::fault::{invalid, not_found, Result};

const MAX_FILE: usize = 128 << 20;
const MAX_TEXT: usize = 16 << 20;
/// In the order in which transformers adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of tokens, or objects of name and token.
const EXTRA: [&str; 3] =
    ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"];

pub struct Tokenizer {
    pub inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    pub fn load(tokenizer_json: &[u8], config_json: &[u8]) -> Result<Self> {
        if tokenizer_json.len() > MAX_FILE || config_json.len() > MAX_FILE {
            return Err(invalid(format!("the tokenizer's file exceeds {MAX_FILE} bytes")));
        }
        let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer_json)
            .map_err(|e| invalid(format!("tokenizer.json: {e}")))?;
        // Prompts are neither cut nor padded, whatever the file's training settings say.
        inner.with_truncation(None).map_err(|e| invalid(format!("tokenizer.json: {e}")))?;
        inner.with_padding(None);
        if !config_json.is_empty() {
            let config: Value = serde_json::from_slice(config_json)
                .map_err(|e| invalid(format!("tokenizer_config.json: {e}")))?;
            add_tokens(&mut inner, &config);
        }
        Ok(Self { inner })
    }

    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT {
            return Err(invalid(format!("text of {} bytes exceeds {MAX_TEXT}", text.len())));
        }
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|e| invalid(format!("the tokenizer refuses the text: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner
            .decode(ids, skip_special)
            .map_err(|e| invalid(format!("the tokenizer cannot decode the ids: {e}")))
    }

    /// The token as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    pub fn is_special(&self, id: u32) -> bool {
        let added = self.inner.get_added_vocabulary();
        added.simple_id_to_token(id).is_some_and(|token| added.is_special_token(&token))
    }

    pub fn id_of(&self, token: &str) -> Result<u32> {
        self.inner
            .token_to_id(token)
            .ok_or_else(|| not_found(format!("the vocabulary has no token {token:?}")))
    }
}

fn added_token(value: &Value) -> Option<AddedToken> {
    let content = value.as_str().or_else(|| value.get("content")?.as_str())?;
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(true);
    Some(
        AddedToken::from(content, special)
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .single_word(flag("single_word").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special)),
    )
}

/// Tokens that only tokenizer_config.json names.
fn add_tokens(inner: &mut tokenizers::Tokenizer, config: &Value) {
    let mut wanted = Vec::new();
    if let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        let mut entries: Vec<_> =
            decoder.iter().filter_map(|(id, token)| Some((u64::from_str(id).ok()?, token))).collect();
        entries.sort_by_key(|(id, _)| *id);
        wanted.extend(entries.into_iter().filter_map(|(_, token)| added_token(token)));
    }
    let named = NAMED.iter().filter_map(|name| config.get(name));
    let extra = EXTRA.iter().filter_map(|name| config.get(name)).flat_map(|tokens| match tokens {
        Value::Array(list) => list.iter().collect(),
        Value::Object(by_name) => by_name.values().collect(),
        _ => Vec::new(),
    });
    for value in named.chain(extra) {
        wanted.extend(added_token(value).map(|mut token| {
            token.special = true;
            token
        }));
    }
    let known = inner.get_added_vocabulary().get_vocab().clone();
    wanted.retain(|token| !known.contains_key(&token.content));
    inner.add_tokens(&wanted);
}
