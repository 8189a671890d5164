//! One call of the script: the keys and bodies of several requests as arguments of one command.

use redis::Cmd;

use super::{EncodedRequest, InjectedTime, Operation};
use crate::key::KEY_BYTES;

/// Bodies that a request is compared with. The traffic of a fleet has few distinct bodies.
const COMPARED_MAX: usize = 8;
/// Room for the injected time and the flags for repeated keys and for lending.
const FLAGS_BYTES: usize = 24;

/// Builds `EVALSHA` or `EVAL` for some requests. A repeated body is replaced by the number of its first use.
pub(crate) fn command<'a>(
    name: &str,
    script: &str,
    requests: impl Iterator<Item = &'a EncodedRequest> + Clone,
    time: InjectedTime,
) -> Cmd {
    let (mut count, mut keys, mut bytes, mut has_lend) = (0, 0, 0, false);
    for request in requests.clone() {
        count += 1;
        keys += request.keys.len();
        bytes += request.body.len();
        has_lend |= request.body.first() == Some(&(Operation::Lend as u8));
    }
    let mut command =
        Cmd::with_capacity(4 + keys + count, bytes + script.len() + keys * KEY_BYTES + FLAGS_BYTES);
    command.arg(name).arg(script).arg(keys);
    let mut fingerprints = Vec::with_capacity(keys);
    for key in requests.clone().flat_map(|request| &request.keys) {
        command.arg(key.as_bytes());
        fingerprints.push(key.fingerprint());
    }
    let mut flags = String::with_capacity(FLAGS_BYTES);
    match (repeats(&mut fingerprints), has_lend) {
        (true, true) => flags.push(','),
        (true, false) => flags.push('+'),
        (false, true) => flags.push('*'),
        (false, false) => {}
    }
    if let Some(time) = time {
        flags.push_str(&time.unix_micros().to_string());
    }
    command.arg(flags);
    let mut seen: smallvec::SmallVec<[(u8, &[u8]); COMPARED_MAX]> = smallvec::SmallVec::new();
    for (position, request) in (1usize..).zip(requests) {
        let body = request.body.as_slice();
        match (seen.iter().find(|(_, other)| *other == body), u8::try_from(position)) {
            (Some((number, _)), _) => {
                command.arg(&[*number][..]);
                continue;
            }
            (None, Ok(number)) if seen.len() < COMPARED_MAX => seen.push((number, body)),
            _ => {}
        }
        command.arg(body);
    }
    command
}

/// Whether two fingerprints are equal.
fn repeats(fingerprints: &mut [u64]) -> bool {
    fingerprints.sort_unstable();
    fingerprints.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use redis::Arg;

    fn request(hash: u128, body: &str) -> EncodedRequest {
        EncodedRequest {
            keys: [Key::new(hash << 80, Some(0))].into_iter().collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    fn arguments(request: &[EncodedRequest]) -> Vec<String> {
        let command = command("EVALSHA", "x", request.iter(), None);
        let text = |argument| match argument {
            Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        command.args_iter().skip(3 + request.len()).map(text).collect()
    }

    /// A repeated body is sent as a number, and only a few distinct bodies are remembered.
    #[test]
    fn repeated_bodies_are_sent_once() {
        let requests = ["one", "two", "one", "two", "three"];
        let requests: Vec<EncodedRequest> =
            (0..).zip(requests).map(|(hash, body)| request(hash, body)).collect();
        assert_eq!(arguments(&requests), ["", "one", "two", "\u{1}", "\u{2}", "three"]);
        let many: Vec<EncodedRequest> =
            (0..40).map(|number| request(number, &format!("body {}", number % 20))).collect();
        let arguments_of_many = arguments(&many);
        assert_eq!(arguments_of_many.iter().filter(|word| word.len() == 1).count(), COMPARED_MAX);
    }

    /// The flag for repeated keys is set if a key occurs twice.
    #[test]
    fn repeated_keys_are_flagged() {
        let different: Vec<EncodedRequest> = (0..64).map(|hash| request(hash, "x")).collect();
        assert_eq!(arguments(&different)[0], "");
        for (first, second) in [(0, 63), (5, 6), (62, 63)] {
            let mut same = different.clone();
            same[second] = same[first].clone();
            assert_eq!(arguments(&same)[0], "+");
        }
    }
}
