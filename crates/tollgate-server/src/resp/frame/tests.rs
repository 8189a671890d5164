//! Frames as bytes: which are complete, which are incomplete, and which are refused.

use super::*;

/// All commands in some bytes, the number of bytes left, and the error that ended the parse.
fn read_all(mut bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, usize, Option<FrameError>) {
    let (mut frame, mut commands) = (Frame::default(), Vec::new());
    loop {
        match frame.read(bytes) {
            Ok(Some(used)) => {
                commands.push(frame.arguments(bytes).from(0).map(<[u8]>::to_vec).collect());
                bytes = &bytes[used..];
            }
            Ok(None) => return (commands, bytes.len(), None),
            Err(error) => return (commands, bytes.len(), Some(error)),
        }
    }
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Arrays of bulk strings with any bytes, several in one piece.
#[test]
fn arrays() {
    let bytes =
        b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n*1\r\n$4\r\nQUIT\r\n*0\r\n*-1\r\n*2\r\n$0\r\n\r\n$4\r\na\r\nb\r\n";
    let expected =
        vec![words(&["PING", "hi"]), words(&["QUIT"]), words(&[]), words(&[]), words(&["", "a\r\nb"])];
    assert_eq!(read_all(bytes), (expected, 0, None));
}

/// A command is incomplete until its last byte arrives, wherever it is cut. Then it equals the command in one piece.
#[test]
fn every_cut_is_waited_for() {
    for whole in [&b"*3\r\n$8\r\nTG.CHECK\r\n$2\r\nip\r\n$12\r\n203.0.113.99\r\n"[..], b"PING \"a b\"\r\n"] {
        let mut frame = Frame::default();
        for cut in 0..whole.len() {
            assert_eq!(frame.read(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        assert_eq!(frame.read(whole), Ok(Some(whole.len())));
    }
}

/// Inline commands as people type them.
#[test]
fn lines() {
    let cases: [(&[u8], &[&str]); 8] = [
        (b"PING\r\n", &["PING"]),
        (b"  ping \t hello  \n", &["ping", "hello"]),
        (b"\r\n", &[]),
        (b"echo \"a \\\"b\\\" \\x41\\n\"\n", &["echo", "a \"b\" A\n"]),
        (b"echo 'it\\'s' \"\"\n", &["echo", "it's", ""]),
        (b"\"\"\n", &[""]),
        (b"echo \"\\x4g\\q\"\n", &["echo", "x4gq"]),
        (b"gets\n", &["gets"]),
    ];
    for (line, expected) in cases {
        assert_eq!(read_all(line), (vec![words(expected)], 0, None), "{}", line.escape_ascii());
    }
}

/// Hostile and broken bytes, each with its error.
#[test]
fn refused() {
    let long_line = [b'a'; INLINE_BYTES_MAX];
    let long_frame = [
        &b"*9\r\n"[..],
        &b"$8192\r\n".iter().chain(&[b'x'; 8192]).chain(b"\r\n").copied().collect::<Vec<u8>>().repeat(8),
    ]
    .concat();
    let cases: [(&[u8], FrameError); 22] = [
        (b"*133\r\n", FrameError::Arguments),
        (b"*99999999999999\r\n", FrameError::Arguments),
        (b"*9999999999999999999999\r\n", FrameError::LongCount),
        (b"*x\r\n", FrameError::Arguments),
        (b"*\r\n", FrameError::Arguments),
        (b"*-\r\n", FrameError::Arguments),
        (b"*1\n$4\r\nPING\r\n", FrameError::Arguments),
        (b"*1\rx", FrameError::Arguments),
        (b"*1\r\n$9999999999\r\n", FrameError::ArgumentLength),
        (b"*1\r\n$99999999999999999999999\r\n", FrameError::LongLength),
        (b"*1\r\n$8193\r\n", FrameError::ArgumentLength),
        (b"*1\r\n$-1\r\n", FrameError::ArgumentLength),
        (b"*1\r\n$+4\r\nPING\r\n", FrameError::ArgumentLength),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", FrameError::Expected(b'*')),
        (b"*1\r\n:5\r\n", FrameError::Expected(b':')),
        (b"*1\r\n$4\r\nPINGxx", FrameError::Unended),
        (b"*1\r\n$4\r\nPING\rx", FrameError::Unended),
        (&long_frame, FrameError::LongFrame),
        (&long_line, FrameError::LongLine),
        (b"echo \"a\n", FrameError::Quotes),
        (b"echo \"a\"b\n", FrameError::Quotes),
        (b"post / HTTP/1.1\r\n", FrameError::Http),
    ];
    for (bytes, expected) in cases {
        assert_eq!(read_all(bytes).2, Some(expected), "{}", bytes[..bytes.len().min(40)].escape_ascii());
    }
    let many = "a ".repeat(ARGUMENTS_MAX + 1) + "\n";
    assert_eq!(read_all(many.as_bytes()).2, Some(FrameError::Arguments));
}

/// The largest command that fits is accepted, with any number of arguments.
#[test]
fn the_bounds_themselves_are_accepted() {
    let mut bytes = format!("*{ARGUMENTS_MAX}\r\n").into_bytes();
    for index in 0..ARGUMENTS_MAX {
        let length = if index < 7 { ARGUMENT_BYTES_MAX } else { 0 };
        bytes.extend(format!("${length}\r\n").bytes().chain(vec![b'x'; length]).chain(*b"\r\n"));
    }
    assert!(bytes.len() <= FRAME_BYTES_MAX);
    let (commands, left, error) = read_all(&bytes);
    assert_eq!((commands[0].len(), left, error), (ARGUMENTS_MAX, 0, None));
}
