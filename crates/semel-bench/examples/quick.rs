//! A quick run on a temporary file, or in the database or Redis that `STORE` names, for profiling. `SERVER` is
//! its first process, by its number, where what it and its children spend is to be told too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for people")]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::var("THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seconds: f64 = std::env::var("SECONDS_EACH").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let waiting = std::env::var("WAITING").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let callers = std::env::var("CALLERS").ok().and_then(|text| text.parse().ok()).unwrap_or(512);
    let connections = std::env::var("CONNECTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let folder = std::env::temp_dir().join(format!("semel-quick-{}", std::process::id()));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let options = semel_bench::Options {
        folder: folder.clone(),
        callers,
        args_bytes: 200,
        duration: std::time::Duration::from_secs_f64(seconds),
        rate: std::env::var("RATE").ok().and_then(|text| text.parse().ok()),
        waiting,
        connections,
        finished: number("FINISHED"),
        churn: std::time::Duration::from_secs(number("CHURN")),
        only: std::env::var("ONLY").ok(),
    };
    // The first are the workers', the others belong to what blocks.
    let number = std::sync::atomic::AtomicUsize::new(0);
    let name = move || match number.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        number if number < threads => "caller".to_owned(),
        _ => "beside".to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name_fn(name)
        .enable_all()
        .build()?;
    let spent = std::cell::RefCell::new((Vec::new(), processor_time()));
    let next = |name: &str| {
        let now = processor_time();
        let mut spent = spent.borrow_mut();
        let before = std::mem::replace(&mut spent.1, now.clone());
        spent.0.push((name.to_owned(), before, now));
    };
    let report = match std::env::var("STORE") {
        Ok(store) if store.starts_with("redis") => {
            let address = semel_redis::Address::parse(&store)?;
            runtime.block_on(semel_bench::run_on_redis(&address, &options, |name| next(name)))
        }
        Ok(store) => {
            let address = semel_postgres::Address::parse(&store)?;
            runtime.block_on(semel_bench::run_on_postgres(&address, &options, |name| next(name)))
        }
        Err(_) => runtime.block_on(semel_bench::run(&options, |name| next(name))),
    };
    next("");
    let spent = spent.into_inner().0;
    if folder.exists() && std::env::var_os("KEEP").is_none() {
        std::fs::remove_dir_all(folder)?;
    }
    for figure in report?.figures {
        // What was spent on a case is known when the next one begins.
        let at = spent.iter().position(|(name, ..)| *name == figure.name).map_or(usize::MAX, |at| at + 1);
        let mut cost = String::new();
        if let Some((_, before, after)) = spent.get(at) {
            for (thread, nanos) in after {
                let nanos = nanos - before.get(thread).copied().unwrap_or(0);
                let micros = nanos as f64 / 1_000.0 / figure.jobs as f64;
                cost.push_str(&format!(" {thread} {micros:.2}"));
            }
        }
        println!(
            "{:<48} {:>9.0}/s  p50 {:.2} p99 {:.2} ms  {}  us per job:{cost}",
            figure.name,
            figure.per_second,
            figure.p50_ms,
            figure.p99_ms,
            figure.share_of_limit.map_or(String::new(), |share| format!("{share:.2} of limit"))
        );
    }
    Ok(())
}

/// Nanoseconds on a processor so far, by the name of the thread, and of the process whose number `SERVER` has; nothing where the
/// system does not say.
fn processor_time() -> std::collections::BTreeMap<String, u64> {
    let mut spent = std::collections::BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let nanos = read("schedstat").split(' ').next().and_then(|text| text.parse::<u64>().ok());
        *spent.entry(read("comm").trim().to_owned()).or_default() += nanos.unwrap_or(0);
    }
    if let Ok(server) = std::env::var("SERVER") {
        let _ = spent.insert("store".to_owned(), servers_time(&server));
    }
    spent
}

/// The same of a server's first process, its children and those of them that have ended. Systems count in hundredths of a second.
fn servers_time(server: &str) -> u64 {
    const TICK: u64 = 10_000_000;
    let mut ticks = 0;
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name is in brackets and may be anything.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let counted = match fields.get(1) {
            _ if process.file_name() == server => 11..15,
            Some(parent) if *parent == server => 11..13,
            _ => continue,
        };
        ticks += fields
            .get(counted)
            .into_iter()
            .flatten()
            .filter_map(|field| field.parse::<u64>().ok())
            .sum::<u64>();
    }
    ticks * TICK
}
