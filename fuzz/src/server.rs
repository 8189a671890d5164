//! The bodies of the fuzz targets of the server, as plain functions, so that a test on stable runs them too. No part of the fuzz
//! crate, which the tests of the core include: the targets and the server's tests include this file.

use tollgate_server::fuzzing::{CommandArguments, check_request, commands, framed, held, path, replies};

/// No bytes make the reader of framing panic, and as many of them pass wherever they are cut.
pub(crate) fn gateway_framing(bytes: &[u8]) {
    let whole = framed(&[bytes]);
    assert!(whole.0 <= bytes.len());
    let cut = bytes.first().map_or(0, |&first| usize::from(first) * bytes.len() / 256);
    let (front, back) = bytes.split_at(cut);
    assert_eq!(framed(&[front, back]), whole, "cut at {cut} something else passes");
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(framed(&single), whole, "byte by byte something else passes");
}

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

fn encode(command: &CommandArguments) -> Vec<u8> {
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

/// No bytes make the reader of questions panic. What it takes for a question, somebody else's parser takes for the same one; what
/// it refuses is refused with words, and bytes behind a question are never passed over.
pub(crate) fn http_question(bytes: &[u8]) {
    match check_request(bytes) {
        Ok((attributes, cost)) => {
            let read: serde_json::Value = serde_json::from_slice(bytes).expect("a question is JSON");
            let given = read["attributes"].as_object().expect("attributes are an object");
            assert_eq!(given.len(), attributes.len(), "an attribute was given twice, or lost");
            for (name, value) in &attributes {
                // Whole numbers may be written in several ways, and minus zero is zero.
                let written = given[name].to_string();
                let number = given[name].as_f64().map(|number| format!("{number:.0}"));
                let same = given[name] == **value || written == *value || number.as_ref() == Some(value);
                assert!(same || number.as_deref() == Some("-0"), "{name}: {value} is not {written}");
            }
            let told = read.get("cost").map_or(Some(1.0), serde_json::Value::as_f64);
            assert!(
                told.is_some_and(|told| format!("{told:.0}") == cost.to_string()),
                "cost {cost} is not {told:?}"
            );
        }
        Err(problem) => assert!(!problem.is_empty(), "refused without a reason"),
    }
}

/// No bytes make the reader of proxied requests panic. A path has one spelling, and nothing that a stranger says changes who it is.
pub(crate) fn held_request(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for slashes in 0..3 {
            if let Some(once) = path(text, slashes) {
                assert_eq!(path(&once, slashes).as_ref(), Some(&once), "{text:?} has two spellings");
            }
        }
    }
    let lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    if let Some(attributes) = held("198.51.100.9", &lines) {
        assert!(
            attributes.contains(&("ip".to_owned(), "198.51.100.9".to_owned())),
            "a stranger is somebody else"
        );
    }
    if let Some(attributes) = held("127.0.0.1", &lines) {
        let ip = attributes.iter().find(|(name, _)| name == "ip").expect("there is always an address");
        assert!(ip.1.trim_end_matches("/64").parse::<std::net::IpAddr>().is_ok(), "{ip:?}");
    }
}
