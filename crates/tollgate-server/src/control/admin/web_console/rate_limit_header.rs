//! Reads the `RateLimit` header that a caller pastes: `"per-key";r=0;t=30`.

use crate::time_text::people;

/// The meaning of a header, in a sentence. `None` if the text is no such header.
pub(super) fn sentence(text: &str) -> Option<String> {
    let text = text.trim();
    let rest = match text.split_at_checked("ratelimit:".len()) {
        Some((name, rest)) if name.eq_ignore_ascii_case("ratelimit:") => rest.trim(),
        _ => text,
    };
    if !rest.starts_with('"') {
        return None;
    }
    let items: Vec<String> = rest.split(',').map(item).collect::<Option<_>>()?;
    Some(format!("When that answer was sent: {}.", items.join("; ")))
}

fn item(text: &str) -> Option<String> {
    let mut parts = text.trim().split(';');
    let name = parts.next()?.trim().strip_prefix('"')?.strip_suffix('"')?;
    let (mut remaining, mut reset) = (None, None);
    for part in parts {
        match part.trim().split_once('=')? {
            ("r", number) => remaining = number.parse::<u64>().ok(),
            ("t", number) => reset = number.parse::<u64>().ok(),
            _ => {}
        }
    }
    let remaining = remaining?;
    let state =
        if remaining == 0 { "it was used up".to_owned() } else { format!("{remaining} units were left") };
    let reset = reset.map_or_else(String::new, |seconds| {
        format!(", and more came back {} later", people(seconds.saturating_mul(1_000)))
    });
    Some(format!("limit {name}: {state}{reset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pasted header is read with and without its name. Attributes are no header.
    #[test]
    fn headers_are_read() {
        assert_eq!(
            sentence(r#"RateLimit: "per-key";r=0;t=30"#).unwrap(),
            "When that answer was sent: limit per-key: it was used up, and more came back 30 s later."
        );
        assert_eq!(
            sentence(r#""a";r=5, "b";r=0;t=60"#).unwrap(),
            "When that answer was sent: limit a: 5 units were left; limit b: it was used up, and more came back 1 min \
             later."
        );
        for other in ["api_key=k1", "", "ratelimit", "\"", "\"a\";x", "RateLimit: \"a\""] {
            assert_eq!(sentence(other), None, "{other}");
        }
    }
}
