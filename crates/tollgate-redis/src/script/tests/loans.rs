//! Loans on the script's fast path and slow path: the same units, the same demand, the same states.

use redis::Value;

use super::server::Server;

/// A request that borrows from one or two counters. An unknown origin forces the slow path.
fn lend(is_fast: bool, counters: &[(u8, [f64; 4])], cost: f64, units: u32, want: [f64; 3]) -> Vec<u8> {
    let mut body = vec![5, u8::try_from(counters.len()).unwrap()];
    for (kind, numbers) in counters {
        body.extend([*kind, 0, if is_fast { 0 } else { 2 }]);
        body.extend(b"100");
        body.extend(units.to_le_bytes());
        body.extend(cost.to_le_bytes());
        numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
    }
    counters.iter().flat_map(|_| want).for_each(|number| body.extend(number.to_le_bytes()));
    body
}

/// The status byte, and the last two numbers of a reply: the units and the demand of the last counter.
fn lent(answer: &Value) -> (u8, Vec<u8>) {
    let Value::BulkString(bytes) = answer else { panic!("{answer:?}") };
    (bytes[0], bytes[bytes.len() - 16..].to_vec())
}

#[tokio::test]
async fn both_paths_lend_the_same() {
    let server = Server::start().await;
    let kinds = [
        (1, [1.0, 5_000.0, 200.0, 200.0]),
        (2, [150.0, 1_000_000.0, 0.0, 0.0]),
        (3, [150.0, 700_000.0, 0.0, 0.0]),
        (5, [120.0, 100_000.0, 10.0, 1.0]),
        (5, [120.0, 300_000.0, 3.0, 0.0]),
    ];
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        u32::try_from(seed % below).unwrap()
    };
    let (mut now, mut fast, mut some, mut with_demand) = (1_700_000_000_000_000u64, 0, 0, 0);
    for step in 0..4_000 {
        now += u64::from(if random(300) == 0 { random(3_000_000) } else { random(20_000) });
        let places: &[usize] = if random(4) == 0 { &[0, 3] } else { &[random(5) as usize] };
        let counters: Vec<_> = places.iter().map(|&place| kinds[place]).collect();
        let (cost, units) = (f64::from(random(3)), random(30));
        let want = [random(5 * 65_536), random(65_537), random(200)].map(f64::from);
        let mut seen = Vec::new();
        for is_fast in [true, false] {
            let name = |sign: char, place: usize| format!("tg:{{@@@@}}{sign}{place}{}", u8::from(is_fast));
            let keys: Vec<String> = ['A', '~']
                .iter()
                .flat_map(|&sign| places.iter().map(move |&place| name(sign, place)))
                .collect();
            let request = lend(is_fast, &counters, cost, units, want);
            let bytes = keys.iter().map(String::as_bytes);
            let answer = server.raw(bytes, &format!("*{now}"), &[&request]).await.unwrap();
            let Value::Array(answers) = answer else { panic!("{answer:?}") };
            let mut states = redis::cmd("MGET");
            let states: Vec<Option<Vec<u8>>> =
                states.arg(&keys).query_async(&mut server.connection.clone()).await.unwrap();
            let (status, lent) = lent(&answers[0]);
            // The fast path leaves idle counters to the slow path.
            assert!(status == 6 || is_fast && status == 7, "{answers:?}");
            fast += u32::from(status == 7);
            seen.push((lent, states));
        }
        assert_eq!(seen[0], seen[1], "step {step} at {now}: {counters:?}, {cost}, {units}, {want:?}");
        some += u32::from(seen[0].0[..8] != [0; 8]);
        with_demand += u32::from(seen[0].0[8..] != [0; 8]);
    }
    assert!(
        fast > 3_500 && some > 500 && with_demand > 500,
        "{fast}, {some} lent, {with_demand} with demand"
    );
}
