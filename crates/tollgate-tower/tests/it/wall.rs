//! A step of the wall clock while a layer is in use.

use tollgate::headers::{Exposure, HeaderPolicy};
use tollgate::time::WallOffset;
use tower::{Layer, service_fn};

use crate::limited::{World, ask, from, hello};

const HOUR: i64 = 3_600_000_000;

/// After a step of the wall clock, reset times and the hour follow it, and used units still count, on every path of a layer.
#[tokio::test]
async fn headers_and_windows_follow_the_wall_clock() {
    let limits = [
        "  - {name: hourly, by: [ip], algorithm: fixed-window, rate: 3/h}",
        "  - {name: hourly, by: [ip], algorithm: fixed-window, rate: 3/h}\n  - {name: more, by: [ip], algorithm: fixed-window, rate: 30/h}",
    ];
    for limits in limits {
        let world = World::new(limits);
        let open = HeaderPolicy { anonymous: Exposure::Full, ..HeaderPolicy::default() };
        let service = world.layer().headers(open).layer(service_fn(hello));
        let reset =
            |got: &crate::limited::Got| got.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap();
        let first = ask(&service, from("192.0.2.1", "/")).await;
        let before = reset(&first);
        assert_eq!(before % 3_600, 0, "{first:?}");
        world.time.set_wall(WallOffset::from_micros(5 * HOUR));
        for expected in ["1", "0"] {
            let got = ask(&service, from("192.0.2.1", "/")).await;
            assert_eq!((got.status, got.header("x-ratelimit-remaining")), (200, Some(expected)), "{got:?}");
            assert_eq!(reset(&got), before + 5 * 3_600, "{got:?}");
        }
        let refused = ask(&service, from("192.0.2.1", "/")).await;
        assert_eq!((refused.status, reset(&refused)), (429, before + 5 * 3_600), "{refused:?}");
    }
}
