//! Nothing that is signed or proven can be replaced, and no question is answered twice.

use hyper::header::HeaderName;

use super::*;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const ASKED: AskedFor<'_> =
    AskedFor { node: "b", admin: "http://b:8080", method: "POST", path: "/admin/v1/get?limit=1" };
const NONCE: Nonce = Nonce(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);

fn keys() -> (NodeKey, NodeKey) {
    (NodeKey::of("0123456789abcdef"), NodeKey::of("0123456789abcdeF"))
}

fn header(name: HeaderName, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name, value.parse().unwrap())])
}

fn proof(value: &str) -> HeaderMap {
    header(HeaderName::from_static(PROOF_HEADER), value)
}

fn read(value: &str) -> Option<Result<NodeSignature, OtherVersion>> {
    NodeSignature::read(&header(AUTHORIZATION, value))
}

/// The vectors of `docs/design/fleet.md`, which other programs can compute.
#[test]
fn the_vectors_of_the_design() {
    let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
    let page = without_spaces(include_str!("../../../../../docs/design/fleet.md"));
    let (key, _) = keys();
    let asked = NodeSignature::new(&key, ASKED, b"{}", NONCE, NOW);
    let mut lines = StreamProofs::new(key.clone(), &asked);
    let line = String::from_utf8(lines.proven(b"{\"missed\":1}\n").to_vec()).unwrap();
    for vector in [
        format!("Authorization: {}", asked.header()),
        format!("{PROOF_HEADER}: {}", asked.proof(&key, 200, b"{\"allowed\":true}")),
        format!("{PROOF_HEADER}: {}", asked.proof_of_lines(&key)),
        line,
    ] {
        assert!(page.contains(&without_spaces(&vector)), "{vector}");
    }
}

/// A question is recognised by nodes with the same token, and no part of it can be replaced.
#[test]
fn a_question_is_for_one_node() {
    let (key, other) = keys();
    let asked = NodeSignature::new(&key, ASKED, b"{}", NONCE, NOW);
    assert!(!asked.header().contains("0123456789abcdef"));
    let read = read(&asked.header()).unwrap().unwrap();
    assert_eq!(read, asked);
    assert!(read.is_signed(&key, ASKED) && read.has_body(b"{}") && !read.has_body(b"{ }"));
    assert!(!read.is_signed(&other, ASKED), "another token");
    for replaced in [
        AskedFor { node: "c", ..ASKED },
        AskedFor { admin: "http://elsewhere:8080", ..ASKED },
        AskedFor { method: "GET", ..ASKED },
        AskedFor { path: "/admin/v1/audit", ..ASKED },
        AskedFor { node: "bh", admin: "ttp://b:8080", ..ASKED },
    ] {
        assert!(!read.is_signed(&key, replaced));
    }
    assert!(!NodeSignature { at: read.at + 1, ..read.clone() }.is_signed(&key, ASKED));
    assert!(!NodeSignature { nonce: Nonce(1), ..read.clone() }.is_signed(&key, ASKED));
    assert!(!NodeSignature { body: hash(b"other"), ..read }.is_signed(&key, ASKED));
}

/// The story: a header whose words have any length was hashed before it was looked at. Words of another length are no
/// question, so nothing is computed from them; and a node of another version is no program without a token.
#[test]
fn a_header_of_another_form_is_no_question() {
    let (key, _) = keys();
    let asked = NodeSignature::new(&key, ASKED, b"{}", NONCE, NOW).header();
    let words: Vec<&str> = asked.split(' ').collect();
    for place in 1..words.len() {
        let long = words[place].repeat(2_000);
        for wrong in [&words[place][1..], &format!("{}0", words[place]), &long, "", "x", "-1"] {
            let mut words = words.clone();
            words[place] = wrong;
            let is_instant = place == 1 && wrong.parse::<u64>().is_ok();
            assert!(is_instant || read(&words.join(" ")).is_none(), "word {place}: {}", wrong.len());
        }
    }
    assert_eq!(read(&words[..4].join(" ")), None);
    assert_eq!(read(&format!("{asked} more")), None);
    assert_eq!(read("Bearer 1 2 3 4"), None);
    assert_eq!(read(&format!("Tollgate-Node 1700000000 {} {}", words[3], words[4])), Some(Err(OtherVersion)));
    assert_eq!(read("Tollgate-Node-3 anything"), Some(Err(OtherVersion)));
    let mut twice = header(AUTHORIZATION, &asked);
    twice.append(AUTHORIZATION, asked.parse().unwrap());
    assert_eq!(NodeSignature::read(&twice), None, "two headers");
}

/// Only a node with the token can answer. The answer to one question is none to another, and its status and its body
/// cannot be changed.
#[test]
fn an_answer_is_to_one_question() {
    let (key, other) = keys();
    let asked = NodeSignature::new(&key, ASKED, b"{}", NONCE, NOW);
    let right = proof(&asked.proof(&key, 200, b"true"));
    assert!(asked.is_answered(&key, &right, 200, b"true"));
    assert!(!asked.is_answered(&key, &right, 200, b"false"), "another body");
    assert!(!asked.is_answered(&key, &right, 200, b"tru"), "a body that was cut off");
    assert!(!asked.is_answered(&key, &right, 409, b"true"), "another status");
    assert!(
        !asked.is_answered(&key, &proof(&asked.proof(&other, 200, b"true")), 200, b"true"),
        "another token"
    );
    assert!(!asked.is_answered(&key, &HeaderMap::new(), 200, b"true"), "no proof");
    assert!(!asked.is_answered(&key, &proof(&asked.proof_of_lines(&key)), 200, b"true"), "that of lines");
    assert!(!asked.is_answered_in_lines(&key, &right), "that of a document");
    let mut twice = right.clone();
    twice.append(PROOF_HEADER, "0".parse().unwrap());
    assert!(!asked.is_answered(&key, &twice, 200, b"true"), "two proofs");
    let again = NodeSignature::new(&key, ASKED, b"{}", Nonce(1), NOW);
    assert!(!again.is_answered(&key, &right, 200, b"true"), "the same question, asked again");
}

/// No line of an answer can be changed, left out, repeated or moved, or be taken from another answer.
#[test]
fn each_line_is_proven() {
    let (key, other) = keys();
    let asked = NodeSignature::new(&key, ASKED, b"", NONCE, NOW);
    assert!(asked.is_answered_in_lines(&key, &proof(&asked.proof_of_lines(&key))));
    assert!(!asked.is_answered_in_lines(&key, &proof(&asked.proof_of_lines(&other))));
    let mut proofs = StreamProofs::new(key.clone(), &asked);
    let [one, two, three] = [&b"{\"a\":1}\n"[..], b"\n", b"{\"b\":2}\n"].map(|line| proofs.proven(line));
    let reader = || StreamProofs::new(key.clone(), &asked);
    let mut right = reader();
    assert_eq!(right.checked(&one), Some(&b"{\"a\":1}\n"[..]));
    assert_eq!(right.checked(&two), Some(&b"\n"[..]));
    assert_eq!(right.checked(&three), Some(&b"{\"b\":2}\n"[..]));
    assert_eq!(right.checked(&three), None, "repeated");
    assert_eq!(reader().checked(&two), None, "the first is left out");
    let changed = String::from_utf8(one.to_vec()).unwrap().replace(":1", ":9");
    assert_eq!(reader().checked(changed.as_bytes()), None);
    for no_line in [&b""[..], b"\n", b"{\"a\":1}\n", &one[..DIGEST_CHARS]] {
        assert_eq!(reader().checked(no_line), None);
    }
    assert_eq!(StreamProofs::new(other, &asked).checked(&one), None, "another token");
    let again = NodeSignature::new(&key, ASKED, b"", Nonce(1), NOW);
    assert_eq!(StreamProofs::new(key, &again).checked(&one), None, "another question");
}

/// A question from too long ago, or from too far ahead, is refused with the reason.
#[test]
fn old_questions_are_refused() {
    let asked = |nonce| NodeSignature::new(&keys().0, ASKED, b"", Nonce(nonce), NOW);
    let at = |seconds: u64| Timestamp::from_unix_seconds(seconds);
    let seen = SeenNonces::default();
    assert_eq!(
        seen.accept(&asked(1), at(1_700_000_300)).and(seen.accept(&asked(2), at(1_699_999_700))),
        Ok(())
    );
    assert!(seen.accept(&asked(3), at(1_700_000_301)).unwrap_err().contains("301 s behind"));
    assert!(seen.accept(&asked(4), at(1_699_999_699)).unwrap_err().contains("301 s ahead of"));
}

/// A question is answered once, for as long as its instant is accepted, however the repetition is spelled.
#[test]
fn a_question_is_answered_once() {
    let (key, _) = keys();
    let seen = SeenNonces::default();
    let asked = NodeSignature::new(&key, ASKED, b"", NONCE, NOW);
    assert_eq!(seen.accept(&asked, NOW), Ok(()));
    for later in [0, 1, 299, 300] {
        let now = Timestamp::from_unix_seconds(1_700_000_000 + later);
        assert!(seen.accept(&asked, now).unwrap_err().contains("answered before"), "{later}");
    }
    let spelled = asked.header().replace("0a0b0c", "0A0B0C");
    assert_ne!(spelled, asked.header());
    let spelled = read(&spelled).unwrap().unwrap();
    assert!(spelled.is_signed(&key, ASKED) && seen.accept(&spelled, NOW).is_err());
    assert_eq!(seen.accept(&NodeSignature::new(&key, ASKED, b"", Nonce(1), NOW), NOW), Ok(()));
}

/// The memory for questions is bounded, and what it forgets is not accepted again.
#[test]
fn forgotten_questions_are_not_accepted() {
    let (key, _) = keys();
    let seen = SeenNonces::default();
    let asked = |at: u64, nonce| NodeSignature {
        at,
        nonce: Nonce(nonce),
        body: String::new(),
        signature: String::new(),
    };
    let first = NodeSignature::new(&key, ASKED, b"", NONCE, NOW);
    assert_eq!(seen.accept(&first, NOW), Ok(()));
    for number in 0..SEEN_MAX as u128 {
        assert_eq!(seen.accept(&asked(1_700_000_001, number), NOW), Ok(()));
    }
    assert_eq!(seen.0.lock().unwrap().nonces.len(), SEEN_MAX);
    assert!(seen.accept(&first, NOW).unwrap_err().contains("too many questions"));
    assert_eq!(seen.accept(&asked(1_700_000_002, 0), NOW), Ok(()), "a newer one is accepted");
    let later = Timestamp::from_unix_seconds(1_700_000_400);
    assert_eq!(seen.accept(&asked(1_700_000_400, 0), later), Ok(()));
    assert_eq!(seen.0.lock().unwrap().nonces.len(), 1, "questions that are too old need no memory");
}
