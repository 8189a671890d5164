//! A batch worker for a model with a limit on tokens. What a job uses is known only afterwards: the worker reserves an
//! estimate, runs the job, and settles what it used.

use std::error::Error;

use tollgate::{CheckRequest, Engine, Reservation, Ticks};

/// A job, what it may use, and what it will use; none if it fails.
struct Job {
    name: &'static str,
    estimate: i64,
    uses: Option<u64>,
}

const JOBS: [Job; 4] = [
    Job { name: "summary", estimate: 400, uses: Some(150) },
    Job { name: "translation", estimate: 400, uses: Some(450) },
    Job { name: "index", estimate: 300, uses: None },
    Job { name: "report", estimate: 600, uses: Some(600) },
];

/// Longest that a job may run. One that takes longer stays charged at its estimate.
const LIFETIME: Ticks = Ticks::from_secs(300);

/// Reserves the estimate of a job, as soon as there is enough.
async fn reserve(engine: &Engine, job: &Job) -> Result<Reservation, Box<dyn Error>> {
    let request = CheckRequest::new().with("tenant", "acme")?.with("tokens", job.estimate)?;
    loop {
        let (decision, reservation) = engine.reservations().reserve(&request, LIFETIME, engine.now()).await;
        if let Some(reservation) = reservation {
            return Ok(reservation);
        }
        // Exact: a moment earlier it would be denied again. None if the estimate is more than the limit ever admits.
        let wait = decision.retry_after().ok_or("no budget is large enough for this job")?;
        println!("{}: waits for {} tokens", job.name, job.estimate);
        tokio::time::sleep(wait.into()).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::open("policy.yaml")?;
    for job in &JOBS {
        let mut reservation = reserve(&engine, job).await?;
        // Here the job runs.
        if let Some(used) = job.uses {
            let settled = engine.reservations().commit(&mut reservation, used, engine.now()).await?;
            let (refunded, charged) = (settled.refunded, settled.charged);
            println!("{}: used {used} of {}, {refunded} refunded, {charged} charged", job.name, job.estimate);
        } else {
            let settled = engine.reservations().cancel(&mut reservation, engine.now()).await?;
            println!("{}: failed, {} refunded", job.name, settled.refunded);
        }
    }
    Ok(())
}
