//! How typed values are parsed.

use super::*;

/// Sizes are read with the usual units, and an invalid one is refused with what would be accepted.
#[test]
fn sizes() {
    assert_eq!(size("64MiB"), Ok(64 << 20));
    assert_eq!(size("1 GiB"), Ok(1 << 30));
    assert_eq!(size("2000000"), Ok(2_000_000));
    assert_eq!(size("500MB"), Ok(500_000_000));
    for wrong in ["", "-1", "0", "1KiB", "1.5GiB", "64 MiBs", "99999999999999999999", "18446744073709551615g"]
    {
        assert!(size(wrong).is_err_and(|message| message.contains("accepted: 1MiB")), "{wrong}");
    }
}

/// A server goes on serving after the stop signal for a bounded time.
#[test]
fn delays() {
    assert_eq!(delay("0s"), Ok(Duration::ZERO));
    assert_eq!(delay("5s"), Ok(Duration::from_secs(5)));
    for wrong in ["", "-1s", "5", "11m", "off"] {
        assert!(delay(wrong).is_err_and(|message| message.contains("accepted: 0s to 10m")), "{wrong}");
    }
}

/// The interval of snapshots is bounded, or snapshots are off.
#[test]
fn intervals() {
    assert_eq!(interval("off"), Ok(SnapshotInterval::Off));
    assert_eq!(interval("10s"), Ok(SnapshotInterval::Every(Duration::from_secs(10))));
    for wrong in ["", "0s", "-1s", "10", "2d", "99ms", "never"] {
        assert!(interval(wrong).is_err_and(|message| message.contains("accepted: off")), "{wrong}");
    }
}

/// A port alone is what people type first, so the message repeats it in the form that works.
#[test]
fn addresses() {
    assert_eq!(address("127.0.0.1:0").map(|a| a.port()), Ok(0));
    assert!(address("localhost:9").is_ok_and(|a| a.ip().is_loopback()));
    assert!(address(":9000").is_err_and(|message| message.contains("127.0.0.1:9000")));
    assert!(address("example.com:80").is_err());
}

/// A protocol can be switched off, and the message says so.
#[test]
fn listening_is_a_choice() {
    assert_eq!(listen("off"), Ok(ListenChoice::Off));
    assert!(listen("127.0.0.1:0").is_ok_and(|choice| choice.address().is_some()));
    assert!(
        listen("6380")
            .is_err_and(|message| message.contains("127.0.0.1:6380") && message.ends_with(", or off"))
    );
}

/// Text stays text, however much it looks like a number.
#[test]
fn attributes() {
    let text =
        |name: &str, value: &str| GivenAttribute { name: name.into(), value: GivenValue::Text(value.into()) };
    assert_eq!(attribute("a=5"), Ok(text("a", "5")));
    assert_eq!(attribute("a=b=c"), Ok(text("a", "b=c")));
    assert_eq!(attribute("a="), Ok(text("a", "")));
    assert_eq!(attribute("a:=-5"), Ok(GivenAttribute { name: "a".into(), value: GivenValue::Number(-5) }));
    assert!(attribute("a:=x").is_err_and(|message| message.contains("a=x for text")));
    assert!(attribute("a").is_err());
}

/// Shares and factors are exact decimals, within their bounds.
#[test]
fn shares_and_factors() {
    let shared = |text| share(text).map(|share| share.to_string());
    assert_eq!(shared("99.9%"), Ok("99.9 %".to_owned()));
    assert_eq!(shared("100 %"), Ok("100 %".to_owned()));
    assert_eq!(shared("0.0001"), Ok("0.0001 %".to_owned()));
    for wrong in ["", "%", "0", "0%", "100.1%", "99.99999%", "-1%", "9,5%", "1e1"] {
        assert!(share(wrong).is_err_and(|message| message.ends_with("such as 99.9%")), "{wrong}");
    }
    assert_eq!((headroom("1"), headroom("1.5"), headroom("10.00")), (Ok(100), Ok(150), Ok(1_000)));
    for wrong in ["", "0.9", "10.01", "1.555", ".5", "1.5x"] {
        assert!(headroom(wrong).is_err_and(|message| message.contains("accepted: 1 to 10")), "{wrong}");
    }
}
