//! A call of the script: the keys and bodies of several requests as arguments of one command.

use redis::Cmd;
use tollgate::Timestamp;

use super::{Asked, Operation};
use crate::key::KEY_BYTES;

/// Bodies that a request is compared with: those of a fleet's traffic are mostly of few kinds.
const COMPARED_MAX: usize = 8;
/// How the time is told, that keys may repeat, and that units are lent.
const WORDS_BYTES: usize = 24;

/// The command `EVALSHA` or `EVAL` for some requests. A body that was there before is told by its number.
pub(crate) fn command<'a>(
    name: &str,
    script: &str,
    requests: impl Iterator<Item = &'a Asked> + Clone,
    time: Option<Timestamp>,
) -> Cmd {
    let (mut count, mut keys, mut bytes, mut lends) = (0, 0, 0, false);
    for asked in requests.clone() {
        count += 1;
        keys += asked.keys.len();
        bytes += asked.body.len();
        lends |= asked.body.first() == Some(&(Operation::Lend as u8));
    }
    let mut command =
        Cmd::with_capacity(4 + keys + count, bytes + script.len() + keys * KEY_BYTES + WORDS_BYTES);
    command.arg(name).arg(script).arg(keys);
    let mut prints = Vec::with_capacity(keys);
    for key in requests.clone().flat_map(|asked| &asked.keys) {
        command.arg(key.as_bytes());
        prints.push(key.print());
    }
    let mut words = String::with_capacity(WORDS_BYTES);
    match (repeats(&mut prints), lends) {
        (true, true) => words.push(','),
        (true, false) => words.push('+'),
        (false, true) => words.push('*'),
        (false, false) => {}
    }
    if let Some(time) = time {
        words.push_str(&time.unix_micros().to_string());
    }
    command.arg(words);
    let mut known: smallvec::SmallVec<[(u8, &[u8]); COMPARED_MAX]> = smallvec::SmallVec::new();
    for (place, asked) in (1usize..).zip(requests) {
        let body = asked.body.as_slice();
        match (known.iter().find(|(_, other)| *other == body), u8::try_from(place)) {
            (Some((number, _)), _) => {
                command.arg(&[*number][..]);
                continue;
            }
            (None, Ok(number)) if known.len() < COMPARED_MAX => known.push((number, body)),
            _ => {}
        }
        command.arg(body);
    }
    command
}

/// Whether two are the same.
fn repeats(prints: &mut [u64]) -> bool {
    prints.sort_unstable();
    prints.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use redis::Arg;

    fn asked(hash: u128, body: &str) -> Asked {
        Asked { keys: [Key::new(hash << 80, Some(0))].into_iter().collect(), body: body.as_bytes().to_vec() }
    }

    fn arguments(asked: &[Asked]) -> Vec<String> {
        let command = command("EVALSHA", "x", asked.iter(), None);
        let text = |argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        command.args_iter().skip(3 + asked.len()).map(text).collect()
    }

    /// What was said before is told by its number, whatever came in between; only so many kinds are remembered.
    #[test]
    fn bodies_are_told_once() {
        let requests = ["one", "two", "one", "two", "three"];
        let requests: Vec<Asked> = (0..).zip(requests).map(|(hash, body)| asked(hash, body)).collect();
        assert_eq!(arguments(&requests), ["", "one", "two", "\u{1}", "\u{2}", "three"]);
        let many: Vec<Asked> =
            (0..40).map(|number| asked(number, &format!("body {}", number % 20))).collect();
        let told = arguments(&many);
        assert_eq!(told.iter().filter(|word| word.len() == 1).count(), COMPARED_MAX);
    }

    /// A key that is there twice is announced.
    #[test]
    fn repeated_keys_are_announced() {
        let different: Vec<Asked> = (0..64).map(|hash| asked(hash, "x")).collect();
        assert_eq!(arguments(&different)[0], "");
        for (first, second) in [(0, 63), (5, 6), (62, 63)] {
            let mut same = different.clone();
            same[second] = same[first].clone();
            assert_eq!(arguments(&same)[0], "+");
        }
    }
}
