//! The bodies of the fuzz targets of the server, as plain functions, so that a test on stable runs them too. No part of the fuzz
//! crate, which the tests of the core include: the targets and the server's tests include this file.

use tollgate_server::fuzzing::{Command, commands, replies};

/// No bytes make the reader of RESP panic. What it reads can be written and read again, and comes out the same wherever the bytes
/// are cut. Whatever is asked, the replies are well formed.
pub(crate) fn resp_frames(bytes: &[u8]) {
    let (read, used, _) = commands(bytes);
    assert!(used <= bytes.len());
    let encoded: Vec<u8> = read.iter().flat_map(encode).collect();
    if encoded.len() < 64 << 10 {
        let (again, all, refused) = commands(&encoded);
        assert!(all == encoded.len() && !refused, "what was read cannot be written");
        assert_eq!(again, read, "what was written is something else");
    }
    let whole = replies(&[bytes]);
    let mut rest = &whole[..];
    while !rest.is_empty() {
        rest = reply(rest, 8).unwrap_or_else(|| panic!("no reply: {}", rest.escape_ascii()));
    }
    // The ids of permits are different each time, and all else is the same.
    let cut = bytes.first().map_or(0, |&first| usize::from(first) * bytes.len() / 256);
    let (front, back) = bytes.split_at(cut);
    assert_eq!(replies(&[front, back]).len(), whole.len(), "cut at {cut} the answer is another");
}

fn encode(command: &Command) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend(argument.iter().chain(b"\r\n"));
    }
    bytes
}

/// Reads one reply by the description of the protocol alone, and returns what follows it.
fn reply(bytes: &[u8], depth: usize) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, rest) = (std::str::from_utf8(bytes.get(1..end)?).ok()?, bytes.get(end + 2..)?);
    let count = |text: &str| text.parse::<usize>().ok();
    let several = |count: usize| (0..count).try_fold(rest, |rest, _| reply(rest, depth.checked_sub(1)?));
    match bytes.first()? {
        b'+' | b'-' => Some(rest),
        b':' => line.parse::<i64>().ok().map(|_| rest),
        b'#' => matches!(line, "t" | "f").then_some(rest),
        b'_' => line.is_empty().then_some(rest),
        b'$' if line == "-1" => Some(rest),
        b'$' => {
            let length = count(line)?;
            (rest.get(length..length + 2)? == b"\r\n").then(|| &rest[length + 2..])
        }
        b'*' | b'~' => several(count(line)?),
        b'%' => several(2 * count(line)?),
        _ => None,
    }
}
