//! Malformed requests: the script rejects them and writes nothing.

use redis::Value;

use super::server::Server;

/// A well-formed key.
const KEY: &[u8] = b"tg:{@@@@}AAAAAAAAAAAAAAAAAAAAA";
const NOW: &str = "1700000000000000";
/// The kinds of state, with valid fields.
const SOUND: [(u8, [f64; 4]); 7] = [
    (1, [1.0, 1_000.0, 10.0, 10.0]),
    (2, [10.0, 1_000_000.0, 0.0, 0.0]),
    (3, [10.0, 1_000_000.0, 0.0, 0.0]),
    (4, [10.0, 1_000_000.0, 1_699_999_999_000_000.0, 1_700_000_001_000_000.0]),
    (5, [10.0, 1_000_000.0, 3.0, 1.0]),
    (6, [10.0, 1_000_000.0, 0.0, 0.0]),
    (7, [10.0, 1_000_000.0, 0.0, 0.0]),
];
/// Values that no field of a quota has.
const WRONG: [f64; 9] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    -1.0,
    -0.5,
    0.5,
    1e300,
    9_007_199_254_740_994.0,
    f64::MIN_POSITIVE,
];

/// A request with one charge.
fn body(operation: u8, kind: u8, origin: u8, cost: f64, numbers: [f64; 4]) -> Vec<u8> {
    let mut body = vec![operation, 1, kind, 0, origin];
    body.extend(b"100");
    body.extend(0u32.to_le_bytes());
    body.extend(cost.to_le_bytes());
    numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
    if kind == 4 {
        body.extend(0f64.to_le_bytes());
    }
    body
}

/// The status byte of the reply to one request; 255 for an error of the whole call.
async fn status(server: &Server, body: &[u8]) -> u8 {
    match server.raw([KEY].into_iter(), NOW, &[body]).await {
        Ok(Value::Array(answers)) => match answers.as_slice() {
            [answer] => status_of(answer),
            other => panic!("{other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(_) => 255,
    }
}

/// The status byte of a reply; 0 for all that mean success.
fn status_of(answer: &Value) -> u8 {
    match answer {
        Value::BulkString(bytes) if bytes[0] == 5 => 0,
        Value::BulkString(bytes) => bytes[0],
        Value::Int(_) => 0,
        _ => 255,
    }
}

async fn is_empty(server: &Server) -> bool {
    server.command::<u64>(&["DBSIZE"]).await == 0
}

/// Valid requests pass, so the rejections below have the right reason.
#[tokio::test]
async fn valid_requests_pass() {
    let server = Server::start().await;
    for (kind, numbers) in SOUND {
        assert_eq!(status(&server, &body(1, kind, 0, 1.0, numbers)).await, 0, "kind {kind}");
        assert!(!is_empty(&server).await);
        server.command::<()>(&["FLUSHALL"]).await;
    }
}

/// Not-a-number, negative, fractional and too large values are rejected for every kind, field and operation.
#[tokio::test]
async fn invalid_numbers_are_rejected() {
    let server = Server::start().await;
    for (kind, sound) in SOUND {
        for operation in [1, 2, 4] {
            for wrong in WRONG {
                let request = body(operation, kind, 0, wrong, sound);
                assert_eq!(status(&server, &request).await, 4, "cost {wrong} of kind {kind}");
                // A window's third and fourth number and a permit's name are not fields of the quota.
                let places = match kind {
                    1 | 4 | 5 => 4,
                    _ => 2,
                };
                for place in 0..places {
                    let mut numbers = sound;
                    numbers[place] = wrong;
                    let answer = status(&server, &body(operation, kind, 0, 1.0, numbers)).await;
                    assert_eq!(answer, 4, "number {place} of kind {kind} is {wrong}");
                }
            }
        }
    }
    assert!(is_empty(&server).await);
}

/// Unknown kinds, operations and lineages, invalid times and truncated requests are rejected.
#[tokio::test]
async fn invalid_shapes_are_rejected() {
    let server = Server::start().await;
    let (_, sound) = SOUND[0];
    for kind in [0, 8, 255] {
        assert_eq!(status(&server, &body(1, kind, 0, 1.0, sound)).await, 4);
    }
    for operation in [0, 6, 255] {
        assert_eq!(status(&server, &body(operation, 1, 0, 1.0, sound)).await, 4);
    }
    for origin in [0, 1] {
        let mut whole = body(1, 1, origin, 1.0, sound);
        if origin == 1 {
            whole.extend([1, b'1', b'0', b'1', 1, 0]);
            whole.extend([0; 7 * 8]);
        }
        for length in 0..whole.len() {
            assert!(matches!(status(&server, &whole[..length]).await, 4 | 255), "{length} bytes");
        }
    }
    let request = body(1, 1, 0, 1.0, sound);
    for time in ["nan", "-1", "1.5", "1e300", "inf", "0x", "now", "9007199254740993000"] {
        assert!(server.raw([KEY].into_iter(), time, &[&request]).await.is_err(), "{time}");
    }
    assert!(server.raw([KEY, KEY].into_iter(), NOW, &[&request]).await.is_err(), "a key too many");
    assert!(server.raw([].into_iter(), NOW, &[&request]).await.is_err(), "a key too few");
    assert!(server.raw([KEY].into_iter(), NOW, &[&request, &request]).await.is_err(), "two for one key");
    assert!(is_empty(&server).await);
}

/// A malformed state is reported and left as it is. Other requests of the call are not affected.
#[tokio::test]
async fn malformed_states_are_left_alone() {
    let server = Server::start().await;
    let key = std::str::from_utf8(KEY).unwrap();
    let other: &[u8] = b"tg:{@@@@}BBBBBBBBBBBBBBBBBBBBB";
    let states = [
        "100",
        "100abcdefghijklmnop",
        "1001700000000000000.x",
        "100W\u{1}",
        "100L123",
        "100P",
        "100-100000000000001",
    ];
    for (kind, sound) in SOUND {
        for state in states {
            server.command::<()>(&["SET", key, state, "PX", "60000"]).await;
            let request = body(1, kind, 0, 1.0, sound);
            let answers = server.raw([KEY, other].into_iter(), NOW, &[&request, &request]).await.unwrap();
            let Value::Array(answers) = answers else { panic!("{answers:?}") };
            let statuses: Vec<u8> = answers.iter().map(status_of).collect();
            assert_eq!(statuses, [3, 0], "kind {kind}, state {state}");
            assert_eq!(server.command::<String>(&["GET", key]).await, state);
            server.command::<()>(&["FLUSHALL"]).await;
        }
    }
}

/// Wanted units are not a key lifetime: a denied request leaves keys that live as long as their states, also after a
/// clock stepped back.
#[tokio::test]
async fn denied_loan_does_not_extend_a_key() {
    let server = Server::start().await;
    let other: &[u8] = b"tg:{@@@@}BBBBBBBBBBBBBBBBBBBBB";
    let (bucket, window) = ([1.0, 1_000_000.0, 10.0, 10.0], [10.0, 1_000_000.0, 3.0, 1.0]);
    // Empty, and a thousand sub-windows ahead.
    server
        .command::<()>(&["SET", std::str::from_utf8(KEY).unwrap(), "1001700000010000000", "EX", "60"])
        .await;
    let mut ahead = b"100W\xce".to_vec();
    ahead.extend((1_700_000_000u32 + 1_000).to_be_bytes());
    ahead.push(1);
    let mut set = redis::cmd("SET");
    set.arg(other).arg(ahead).arg("EX").arg("60");
    set.query_async::<()>(&mut server.connection.clone()).await.unwrap();
    let mut request = vec![5, 2];
    for (kind, numbers) in [(1, bucket), (5, window)] {
        let one = body(5, kind, 0, 1.0, numbers);
        request.extend(&one[2..8]);
        request.extend(40u32.to_le_bytes());
        request.extend(&one[12..]);
    }
    let (wants, crowds) = ([0.0f64, 32_768.0, 1.0], [crowd_of(KEY), crowd_of(other)]);
    wants.iter().chain(&wants).for_each(|number| request.extend(number.to_le_bytes()));
    let keys = [KEY, other, &crowds[0], &crowds[1]];
    let answer = server.raw(keys.into_iter(), &format!("*{NOW}"), &[&request]).await.unwrap();
    let Value::Array(answers) = answer else { panic!("{answer:?}") };
    assert_eq!(status_of(&answers[0]), 6, "{answers:?}");
    let life: i64 = server.command(&["TTL", std::str::from_utf8(other).unwrap()]).await;
    // The window, the extra lifetime, and what an injected time adds.
    assert!((1..=3_600 + 10).contains(&life), "{life} s");
}

/// The demand key of a counter.
fn crowd_of(key: &[u8]) -> Vec<u8> {
    let mut crowd = key.to_vec();
    crowd[9] = b'~';
    crowd
}

/// A want that is out of range or missing, and a loan without its flag, are rejected without a write. A malformed
/// demand counts as none.
#[tokio::test]
async fn wants_out_of_range_are_rejected() {
    let server = Server::start().await;
    let (crowd, time) = (crowd_of(KEY), format!("*{NOW}"));
    let lend = async |time: &str, wants: &[f64], kind: u8, sound: [f64; 4]| {
        let mut request = body(5, kind, 0, 1.0, sound);
        wants.iter().for_each(|number| request.extend(number.to_le_bytes()));
        match server.raw([KEY, crowd.as_slice()].into_iter(), time, &[&request]).await {
            Ok(Value::Array(answers)) => status_of(&answers[0]),
            Ok(other) => panic!("{other:?}"),
            Err(_) => 255,
        }
    };
    for (kind, sound) in [SOUND[0], SOUND[1], SOUND[4]] {
        for place in 0..3 {
            for wrong in WRONG {
                let mut wants = [0.0, 1.0, 2.0];
                wants[place] = wrong;
                assert_eq!(lend(&time, &wants, kind, sound).await, 4, "kind {kind}, {wants:?}");
            }
        }
        assert_eq!(lend(&time, &[0.0, 65_537.0, 0.0], kind, sound).await, 4);
        assert_eq!(lend(&time, &[0.0, 1.0], kind, sound).await, 4);
        assert_eq!(lend(NOW, &[0.0, 1.0, 2.0], kind, sound).await, 4);
        assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0);
        for no_crowd in [&b"none"[..], &[0xff; 32], &[]] {
            let mut set = redis::cmd("SET");
            set.arg(crowd.as_slice()).arg(no_crowd);
            set.query_async::<()>(&mut server.connection.clone()).await.unwrap();
            assert_eq!(lend(&time, &[0.0, 1.0, 2.0], kind, sound).await, 7);
        }
        server.command::<()>(&["FLUSHALL"]).await;
    }
}
