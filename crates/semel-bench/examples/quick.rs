//! A quick run on a temporary file, for profiling.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for people")]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::var("THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seconds: f64 = std::env::var("SECONDS_EACH").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let waiting = std::env::var("WAITING").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let callers = std::env::var("CALLERS").ok().and_then(|text| text.parse().ok()).unwrap_or(512);
    let folder = std::env::temp_dir().join(format!("semel-quick-{}", std::process::id()));
    let options = semel_bench::Options {
        folder: folder.clone(),
        callers,
        args_bytes: 200,
        duration: std::time::Duration::from_secs_f64(seconds),
        waiting,
        only: std::env::var("ONLY").ok(),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_time().build()?;
    let report = runtime.block_on(semel_bench::run(&options, |_| {}));
    if std::env::var_os("KEEP").is_none() {
        std::fs::remove_dir_all(folder)?;
    }
    for figure in report?.figures {
        println!(
            "{:<60} {:>9.0}/s  p50 {:.2} p99 {:.2} ms  {}",
            figure.name,
            figure.per_second,
            figure.p50_ms,
            figure.p99_ms,
            figure.share_of_limit.map_or(String::new(), |share| format!("{share:.2} of limit"))
        );
    }
    Ok(())
}
