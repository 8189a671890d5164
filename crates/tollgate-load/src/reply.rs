//! Where an answer ends, and whether it allows. Parses only as much of each protocol as that needs.

use crate::details::{Details, find};

/// An answer in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Its size in bytes.
    pub(crate) length: usize,
    /// How many of its decisions allow.
    pub(crate) allowed: u64,
    /// Whether it is an answer and not an error.
    pub(crate) answered: bool,
}

/// The first answer in a buffer, once it is complete.
pub(crate) fn http(buffer: &[u8], details: &mut Details, turn: u64) -> Option<Reply> {
    let head = find(buffer, b"\r\n\r\n")? + 4;
    let status = buffer.get(9..12)?;
    let length = head.saturating_add(content_length(&buffer[..head]));
    let body = buffer.get(head..length)?;
    // Only a decision begins with this; the results of its single limits begin with their names.
    let allowed = count(body, b"{\"allowed\":true");
    details.look_at_json(body, turn);
    Some(Reply { length, allowed, answered: status == b"200" || status == b"429" })
}

fn content_length(head: &[u8]) -> usize {
    let lines = head.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| line.split_at_checked(15))
        .find(|(name, _)| name.eq_ignore_ascii_case(b"content-length:"))
        .and_then(|(_, value)| std::str::from_utf8(value).ok()?.trim().parse().ok())
        .unwrap_or(0)
}

/// The first answer of RESP in a buffer. In an array of integers, redis-cell puts 0 first for yes, and `TG.CHECK` and
/// others put 1. The caller passes the one that means yes.
pub(crate) fn resp(buffer: &[u8], yes: &[u8], details: &mut Details) -> Option<Reply> {
    let length = resp_length(buffer, 0)?;
    let answered = buffer.first() != Some(&b'-');
    let first = line_end(buffer).and_then(|end| buffer.get(end..));
    let is_yes = match buffer.first() {
        Some(b'*' | b'%') => first.is_some_and(|first| first.starts_with(yes)),
        _ => buffer.starts_with(yes),
    };
    if answered
        && !is_yes
        && let Some(cause) = resp_cause(buffer)
    {
        details.deny(cause);
    }
    Some(Reply { length, allowed: u64::from(is_yes), answered })
}

/// The index of the limit's name in an answer to `TG.CHECK`.
const NAME_PLACE: usize = 6;

/// The cause of a denial, if the answer contains it.
fn resp_cause(buffer: &[u8]) -> Option<&[u8]> {
    let mut at = line_end(buffer).filter(|_| buffer.starts_with(b"*8\r"))?;
    for _ in 0..NAME_PLACE {
        at += resp_length(buffer.get(at..)?, 1)?;
    }
    let name = buffer.get(at..).filter(|name| name.starts_with(b"$"))?;
    let end = resp_length(name, 1)?;
    name.get(line_end(name)?..end.checked_sub(2)?)
}

/// Maximum nesting of an answer.
const DEPTH_MAX: usize = 8;

fn resp_length(buffer: &[u8], depth: usize) -> Option<usize> {
    let end = line_end(buffer)?;
    let count = || std::str::from_utf8(buffer.get(1..end - 2)?).ok()?.parse::<i64>().ok();
    match buffer.first()? {
        b'$' | b'=' => match usize::try_from(count()?) {
            Ok(length) => end.checked_add(length)?.checked_add(2).filter(|&whole| whole <= buffer.len()),
            Err(_) => Some(end),
        },
        kind @ (b'*' | b'%' | b'~') if depth < DEPTH_MAX => {
            let parts =
                usize::try_from(count()?).unwrap_or(0).saturating_mul(if *kind == b'%' { 2 } else { 1 });
            let mut at = end;
            for _ in 0..parts {
                at += resp_length(buffer.get(at..)?, depth + 1)?;
            }
            Some(at)
        }
        _ => Some(end),
    }
}

/// The index after the first line.
fn line_end(buffer: &[u8]) -> Option<usize> {
    find(buffer, b"\r\n").map(|at| at + 2)
}

fn count(buffer: &[u8], wanted: &[u8]) -> u64 {
    buffer.windows(wanted.len()).filter(|window| window == &wanted).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_http(buffer: &[u8]) -> Option<Reply> {
        http(buffer, &mut Details::default(), 1)
    }

    fn read_resp(buffer: &[u8], yes: &[u8]) -> Option<Reply> {
        resp(buffer, yes, &mut Details::default())
    }

    /// A denial of `TG.CHECK` names its limit; an answer of another command names none.
    #[test]
    fn a_denial_over_resp_names_its_limit() {
        let mut details = Details::default();
        let denied = b"*8\r\n:0\r\n$4\r\ndeny\r\n:0\r\n:3\r\n:9\r\n:9\r\n$7\r\nper-key\r\n$-1\r\n";
        assert_eq!(resp(denied, b":1\r", &mut details).map(|reply| reply.length), Some(denied.len()));
        resp(b"*5\r\n:1\r\n:16\r\n:15\r\n:-1\r\n:2\r\n", b":0\r", &mut details);
        assert_eq!(details.denied_by.into_iter().collect::<Vec<_>>(), [("per-key".to_owned(), 1)]);
    }

    /// An answer is found when its last byte has come, and not before.
    #[test]
    fn an_answer_ends_where_it_ends() {
        let http_answer = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"allowed\":true}";
        let resp_answer = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
        for end in 0..http_answer.len() {
            assert_eq!(read_http(&http_answer[..end]), None, "{end}");
        }
        for end in 0..resp_answer.len() {
            assert_eq!(read_resp(&resp_answer[..end], b":0\r"), None, "{end}");
        }
        let whole = Reply { length: http_answer.len(), allowed: 1, answered: true };
        assert_eq!(read_http(http_answer), Some(whole));
        let whole = Reply { length: resp_answer.len(), allowed: 1, answered: true };
        assert_eq!(read_resp(resp_answer, b":0\r"), Some(whole));
        assert_eq!(read_resp(resp_answer, b":1\r").map(|reply| reply.allowed), Some(0));
        assert_eq!(read_http(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}"), None);
        assert_eq!(read_resp(b"-ERR no\r\n", b":0\r").map(|reply| reply.answered), Some(false));
        assert_eq!(read_resp(b"$-1\r\n+OK\r\n", b":0\r").map(|reply| reply.length), Some(5));
        assert_eq!(read_resp(b"$3\r\na\nb\r\n", b":0\r").map(|reply| reply.length), Some(9));
    }
}
