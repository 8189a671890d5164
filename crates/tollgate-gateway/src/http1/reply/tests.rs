use super::*;

/// Reads an answer that comes in parts of `parts` bytes. Returns its status, its body, the number of its trailers, and
/// whether the connection is kept.
fn read_in(parts: usize, answer: &str, asked: &Method) -> Result<(u16, String, usize, bool), BrokenAnswer> {
    let (mut bytes, mut searched, mut head) = (BytesMut::new(), 0, None);
    let (mut body, mut trailers) = (Vec::new(), 0);
    for part in answer.as_bytes().chunks(parts) {
        bytes.extend_from_slice(part);
        if head.is_none() {
            head = super::head(&mut bytes, &mut searched, asked)?;
        }
        let Some(ResponseHead { body: decoder, .. }) = &mut head else { continue };
        while let ResponseElement::Frame(frame) = decoder.next(&mut bytes)? {
            trailers += frame.trailers_ref().map_or(0, HeaderMap::len);
            body.extend(frame.into_data().unwrap_or_default());
        }
    }
    let mut head = head.ok_or(BrokenAnswer("no head"))?;
    if !head.body.is_over() {
        head.body.end()?;
    }
    let is_kept = head.is_kept && bytes.is_empty();
    Ok((head.response.status().as_u16(), String::from_utf8(body).unwrap(), trailers, is_kept))
}

/// Reads an answer, and checks that the result does not depend on how the bytes are split.
fn read(answer: &str) -> Result<(u16, String, usize, bool), BrokenAnswer> {
    let whole = read_in(answer.len(), answer, &Method::GET);
    for parts in 1..8 {
        assert_eq!(read_in(parts, answer, &Method::GET), whole, "{answer:?} in parts of {parts}");
    }
    whole
}

/// Each way to mark the end of an answer.
#[test]
fn lengths() {
    let answer_of = |status, body: &str, trailers, is_kept| Ok((status, body.to_owned(), trailers, is_kept));
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", answer_of(200, "hello", 0, true)),
        ("HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", answer_of(200, "", 0, true)),
        ("HTTP/1.1 200 OK\nContent-Length: 2\n\nok", answer_of(200, "ok", 0, true)),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n\r\nok",
            answer_of(200, "ok", 0, true),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nok",
            answer_of(200, "ok", 0, false),
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", answer_of(200, "ok", 0, false)),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
            answer_of(200, "ok", 0, true),
        ),
        ("HTTP/1.1 200 OK\r\n\r\nuntil the end", answer_of(200, "until the end", 0, false)),
        ("HTTP/1.1 204 No Content\r\n\r\n", answer_of(204, "", 0, true)),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", answer_of(204, "", 0, true)),
        // An upstream may send a body that the status forbids.
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", answer_of(204, "", 0, false)),
        ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", answer_of(204, "", 0, false)),
        ("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", answer_of(304, "", 0, false)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", answer_of(304, "", 0, true)),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n00A ;x=\"y\"\r\n, my world\r\n0\r\n\r\n",
            answer_of(200, "hello, my world", 0, true),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
            answer_of(200, "a", 2, true),
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", answer_of(200, "", 0, true)),
        // Chunks count, but after two lengths the connection is not reused.
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            answer_of(200, "a", 0, false),
        ),
        // An informational response is not the answer.
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            answer_of(200, "a", 0, true),
        ),
        // Bytes that follow an answer unasked are not read as the next one.
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\n",
            answer_of(200, "a", 0, false),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            answer_of(200, "", 0, false),
        ),
    ];
    for (answer, expected) in cases {
        assert_eq!(read(answer), expected, "{answer:?}");
    }
    let head = read_in(7, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", &Method::HEAD);
    assert_eq!(head, answer_of(200, "", 0, true));
}

/// An answer that is cut off, or that servers could read differently, is refused.
#[test]
fn malformed_responses_are_refused() {
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let cases = [
        "HTTP/2 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 20 OK\r\n\r\n".to_owned(),
        "hello\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .to_owned(),
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        chunked("5\r\nhello\r\n"),
        chunked("5\r\nhello\r\n0\r\n"),
        chunked("5\r\nhello0\r\n\r\n"),
        chunked("5\nhello\r\n0\r\n\r\n"),
        chunked("0x5\r\nhello\r\n0\r\n\r\n"),
        chunked("\r\nhello\r\n0\r\n\r\n"),
        chunked("-1\r\n"),
        chunked("ffffffffffffffff\r\n"),
        chunked(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(300))),
        chunked("0\r\nno colon\r\n\r\n"),
        chunked(&format!("0\r\nX: {}\r\n\r\n", "x".repeat(17 << 10))),
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(65 << 10)),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: 1\r\n".repeat(257)),
    ];
    for case in cases {
        for parts in [1, 3, 1_024].into_iter().filter(|parts| *parts > 1 || case.len() < 1_000) {
            let read = read_in(parts, &case, &Method::GET);
            assert!(read.is_err(), "{:?} in parts of {parts}: {read:?}", &case[..case.len().min(120)]);
        }
    }
}
