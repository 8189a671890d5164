//! Recipes. Each is a whole program's worth of lines, and runs as a test of this crate.
//!
//! | to | recipe |
//! |---|---|
//! | limit each user, and say when to come back | [1](#1-limit-each-user) |
//! | wait instead of refusing | [2](#2-wait-instead-of-refusing) |
//! | cap what is in flight | [3](#3-cap-what-is-in-flight) |
//! | sell plans | [4](#4-sell-plans) |
//! | charge an estimate and settle the cost | [5](#5-charge-an-estimate-and-settle-the-cost) |
//! | count only wrong passwords | [6](#6-count-only-wrong-passwords) |
//! | try a limit without enforcing it | [7](#7-try-a-limit-without-enforcing-it) |
//! | answer with a 429 and its headers | [8](#8-answer-with-a-429-and-its-headers) |
//! | block a client, or switch a limit off | [9](#9-block-a-client-or-switch-a-limit-off) |
//! | test without sleeping | [10](#10-test-without-sleeping) |
//!
//! The crate `tollgate-tower` puts these in front of an axum, hyper or tonic service, and `tollgate-redis` counts them
//! for a fleet; each has its own first lines on its front page.
//!
//! # 1. Limit each user
//!
//! ```
//! use tollgate::{Gate, Verdict};
//! let logins = Gate::keyed("5/min")?;
//! match logins.check("user-42") {
//!     Verdict::Allow => {}
//!     Verdict::Deny { retry_after } => println!("come back in {} ms", retry_after.ceil_millis()),
//!     other => println!("{other:?}"),
//! }
//! # Ok::<(), tollgate::QuotaError>(())
//! ```
//!
//! # 2. Wait instead of refusing
//!
//! For a client of an API with a limit. The waiters of one gate are served in the order in which they came.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::Gate;
//! let api = Gate::new("100/s burst 1")?;
//! # pollster::block_on(async {
//! for _page in 0..3 {
//!     api.until_ready().within(Duration::from_secs(5)).await?; // Refused at once if 5 seconds are not enough.
//!     // … call the API …
//! }
//! # Ok::<(), tollgate::NotReady>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 3. Cap what is in flight
//!
//! A permit returns when it is dropped. That of a task that hangs returns after the time that the quota names.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Gate, Quota};
//! let exports = Gate::keyed(Quota::concurrency(2, Duration::from_secs(60))?)?;
//! let first = exports.acquire("tenant-1").unwrap();
//! let _second = exports.acquire("tenant-1").unwrap();
//! assert!(exports.acquire("tenant-1").is_err());
//! assert!(exports.acquire("tenant-2").is_ok());
//! drop(first);
//! assert!(exports.acquire("tenant-1").is_ok());
//! # Ok::<(), tollgate::QuotaError>(())
//! ```
//!
//! # 4. Sell plans
//!
//! The plan is an attribute of the request, and one customer has a contract of its own.
//!
//! ```
//! use tollgate::{CheckRequest, Engine};
//! const POLICY: &str = "
//! limits:
//!   - name: plan
//!     by: [tenant]
//!     tier_by: plan
//!     tiers: {free: 10/min, pro: 100/min, suspended: deny}
//!     overrides: {acme: 5000/min}
//! ";
//! let engine = Engine::builder().policy(POLICY.parse()?).build(); // Or Engine::open("policy.yaml")?
//! for (tenant, plan, limit) in [("one", "free", 10), ("two", "pro", 100), ("acme", "free", 5000)] {
//!     let request = CheckRequest::new().with("tenant", tenant)?.with("plan", plan)?;
//!     let decision = engine.try_check(&request, engine.now())?;
//!     assert_eq!(decision.limits().next().unwrap().outcome.limit, limit);
//! }
//! let request = CheckRequest::new().with("tenant", "three")?.with("plan", "suspended")?;
//! assert!(!engine.try_check(&request, engine.now())?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 5. Charge an estimate and settle the cost
//!
//! For tokens of a language model, or anything whose cost is known afterwards.
//!
//! ```
//! use tollgate::{CheckRequest, Engine, Ticks};
//! let policy = "limits: [{name: tokens, by: [tenant], rate: 10k/min, cost: estimate}]".parse()?;
//! let engine = Engine::builder().policy(policy).build();
//! let request = CheckRequest::new().with("tenant", "acme")?.with("estimate", 1_000)?;
//! # pollster::block_on(async {
//! let (decision, reservation) =
//!     engine.reservations().reserve(&request, Ticks::from_secs(60), engine.now()).await;
//! if let Some(mut reservation) = reservation.filter(|_| decision.is_allowed()) {
//!     // … the call used 640 tokens …
//!     let settled = engine.reservations().commit(&mut reservation, 640, engine.now()).await?;
//!     assert_eq!(settled.refunded, 360);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 6. Count only wrong passwords
//!
//! Charge before the password is compared, so that many guesses at once are many guesses, and forget the failures of a
//! user who knows it.
//!
//! ```
//! use tollgate::Gate;
//! let failures = Gate::keyed("3/h")?;
//! let log_in = |user: &str, password: &str| {
//!     if !failures.check(user).is_allowed() {
//!         return "locked";
//!     }
//!     if password != "correct horse" {
//!         return "wrong";
//!     }
//!     failures.reset(user);
//!     "welcome"
//! };
//! assert_eq!(log_in("ada", "correct horse"), "welcome");
//! assert_eq!([(); 4].map(|()| log_in("ada", "guess")), ["wrong", "wrong", "wrong", "locked"]);
//! # Ok::<(), tollgate::QuotaError>(())
//! ```
//!
//! # 7. Try a limit without enforcing it
//!
//! A limit in shadow counts and never denies. Its outcome shows what it would have done.
//!
//! ```
//! use tollgate::{CheckRequest, Engine};
//! let policy = "limits: [{name: next-year, by: [api_key], rate: 1/h, mode: shadow}]".parse()?;
//! let engine = Engine::builder().policy(policy).build();
//! let request = CheckRequest::new().with("api_key", "k-42")?;
//! engine.try_check(&request, engine.now())?;
//! let decision = engine.try_check(&request, engine.now())?;
//! let would_deny: Vec<&str> =
//!     decision.limits().filter(|status| !status.outcome.is_allowed()).map(|status| status.limit.name()).collect();
//! assert!(decision.is_allowed());
//! assert_eq!(would_deny, ["next-year"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 8. Answer with a 429 and its headers
//!
//! Status, headers and body are text, for any HTTP library.
//!
//! ```
//! use tollgate::{Answer, Audience, CheckRequest, Engine, HeaderPolicy};
//! let engine = Engine::builder().policy("limits: [{name: per-key, by: [api_key], rate: 1/h}]".parse()?).build();
//! let request = CheckRequest::new().with("api_key", "k-42")?;
//! engine.try_check(&request, engine.now())?;
//! let now = engine.now();
//! let answer =
//!     Answer::of(&engine.try_check(&request, now)?, &HeaderPolicy::default(), Audience::default(), now);
//! assert_eq!(answer.status, 429);
//! assert!(answer.headers.get("Retry-After").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 9. Block a client, or switch a limit off
//!
//! Both end by themselves, and survive a change of the policy.
//!
//! ```
//! use tollgate::{CheckRequest, Engine, LimitOverride, ExpiringOverride, Scope, Ticks};
//! let engine = Engine::builder().policy("limits: [{name: per-ip, by: [ip], rate: 1/h}]".parse()?).build();
//! let request = CheckRequest::new().with("ip", "192.0.2.7")?;
//! let (now, minutes) = (engine.now(), Ticks::from_secs(600));
//! engine.operator().block(&request, now + minutes, now)?;
//! assert_eq!(engine.try_check(&request, now)?.cause_name(), Some("operator-block"));
//! engine.operator().unblock(&request, now);
//!
//! let off = ExpiringOverride { kind: LimitOverride::Off, until: now + minutes };
//! engine.operator().set_override(Scope::Limit("per-ip"), off, now)?;
//! assert!((0..5).all(|_| engine.try_check(&request, now).is_ok_and(|decision| decision.is_allowed())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # 10. Test without sleeping
//!
//! Advice is exact: one tick early is denied, on the tick is admitted.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{CheckRequest, Engine, ManualClock};
//! let time = ManualClock::new();
//! let policy = "limits: [{name: all, rate: 1/min}]".parse()?;
//! let engine = Engine::builder().policy(policy).clock(time.clock()).build();
//! let allowed = || engine.try_check(&CheckRequest::new(), engine.now()).is_ok_and(|decision| decision.is_allowed());
//! assert!(allowed());
//! time.advance(Duration::from_secs(60) - Duration::from_micros(1));
//! assert!(!allowed());
//! time.advance(Duration::from_micros(1));
//! assert!(allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
