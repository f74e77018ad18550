//! When crons tick, especially where clocks change.

use semel_core::cron::Schedule;
use semel_core::time::Timestamp;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text, "").unwrap()
}

/// The next ticks after `after`, in UTC.
fn ticks(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::parse(expression, zone).unwrap();
    let mut now = at(after);
    let mut next = || {
        now = schedule.next_after(now, now).unwrap();
        now.to_string()
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn fields_names_and_steps_are_read() {
    for (expression, expected) in [
        ("* * * * *", "2026-01-01T00:01:00Z"),
        ("*/15 * * * * *", "2026-01-01T00:00:15Z"),
        ("5,10-12 * * * *", "2026-01-01T00:05:00Z"),
        ("0 9 * * MON-FRI", "2026-01-01T09:00:00Z"),
        ("0 9 * feb sun", "2026-02-01T09:00:00Z"),
        ("0 0 * * 7", "2026-01-04T00:00:00Z"),
        ("0 0 L * *", "2026-01-31T00:00:00Z"),
        ("0 0 17W * *", "2026-01-16T00:00:00Z"),
        ("0 0 * * 5#3", "2026-01-16T00:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("@annually", "2027-01-01T00:00:00Z"),
        ("@monthly", "2026-02-01T00:00:00Z"),
        ("@weekly", "2026-01-04T00:00:00Z"),
        ("@daily", "2026-01-02T00:00:00Z"),
        ("@midnight", "2026-01-02T00:00:00Z"),
        ("@hourly", "2026-01-01T01:00:00Z"),
    ] {
        assert_eq!(ticks(expression, "UTC", "2026-01-01T00:00:00Z", 1), [expected], "{expression}");
    }
    // Either of the two days matches.
    let expected = ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"];
    assert_eq!(ticks("0 0 13 * FRI", "UTC", "2026-01-01T00:00:00Z", 3), expected);
}

#[test]
fn intervals_count_from_their_anchor() {
    let schedule = Schedule::parse("@every 1h30m", "UTC").unwrap();
    let anchor = at("2026-01-01T00:07:00Z");
    assert_eq!(schedule.next_after(anchor, anchor).unwrap(), at("2026-01-01T01:37:00Z"));
    // However many ticks have passed, the rhythm stays the same.
    assert_eq!(schedule.next_after(at("2026-01-01T10:00:00Z"), anchor).unwrap(), at("2026-01-01T10:37:00Z"));
    assert_eq!(schedule.next_after(at("2026-01-01T10:37:00Z"), anchor).unwrap(), at("2026-01-01T12:07:00Z"));
}

#[test]
fn what_is_no_schedule_says_where() {
    for expression in [
        "",
        "not a valid cron",
        "0 0 0 0 0 0 0",
        "99 25 32 13 8",
        "*/0 * * * *",
        "60 * * * *",
        "* * * *",
        "0 0 30 2 *",
        "@fortnightly",
        "@every",
        "@every 10",
        "@every 500ms",
        "@every 1d",
    ] {
        let refused = Schedule::parse(expression, "UTC").unwrap_err();
        assert_eq!(refused.pointer, "/expression", "{expression}");
    }
    for zone in ["", "EST", "UTC+5", "+05:00", "Etc/GMT+5", "Mars/Olympus", "CET"] {
        assert_eq!(Schedule::parse("@daily", zone).unwrap_err().pointer, "/timezone", "{zone}");
    }
    for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Asia/Tokyo"] {
        assert!(Schedule::parse("@daily", zone).is_ok(), "{zone}");
    }
}

#[test]
fn a_schedule_goes_by_the_wall_clock_of_its_zone() {
    assert_eq!(ticks("0 9 * * *", "Asia/Tokyo", "2026-01-01T00:00:00Z", 1), ["2026-01-02T00:00:00Z"]);
    let expected = ["2026-03-28T08:00:00Z", "2026-03-29T07:00:00Z", "2026-03-30T07:00:00Z"];
    assert_eq!(ticks("0 9 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3), expected);
}

/// New York, 8 March 2026: 2:00 becomes 3:00.
#[test]
fn a_skipped_time_has_no_tick() {
    let expected = ["2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z"];
    assert_eq!(ticks("30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", 2), expected);
    let expected = ["2026-03-08T06:30:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"];
    assert_eq!(ticks("*/30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", 3), expected);
    // If midnight is skipped, that day has no tick.
    let expected = ["2018-11-03T03:00:00Z", "2018-11-05T02:00:00Z"];
    assert_eq!(ticks("0 0 * * *", "America/Sao_Paulo", "2018-11-02T12:00:00Z", 2), expected);
}

/// New York, 1 November 2026: 2:00 becomes 1:00.
#[test]
fn a_repeated_time_ticks_the_first_time() {
    let expected = ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"];
    assert_eq!(ticks("30 1 * * *", "America/New_York", "2026-11-01T00:00:00Z", 2), expected);
    // Registered between the two passes: the first is over.
    assert_eq!(ticks("30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z", 1), ["2026-11-02T06:30:00Z"]);
    let expected = ["2026-11-01T05:15:00Z", "2026-11-01T05:45:00Z", "2026-11-01T07:15:00Z"];
    assert_eq!(ticks("15,45 1-2 * * *", "America/New_York", "2026-11-01T05:00:00Z", 3), expected);
}

/// The repeated hour is an hour like any other.
#[test]
fn an_hourly_expression_ticks_in_both_passes() {
    let expected = [
        "2026-11-01T05:20:00Z",
        "2026-11-01T05:40:00Z",
        "2026-11-01T06:00:00Z",
        "2026-11-01T06:20:00Z",
        "2026-11-01T06:40:00Z",
        "2026-11-01T07:00:00Z",
    ];
    assert_eq!(ticks("*/20 * * * *", "America/New_York", "2026-11-01T05:00:00Z", 6), expected);
    // Hourly is whatever ticks in every hour, however the hours are written.
    let listed = (0..24).map(|hour| hour.to_string()).collect::<Vec<_>>().join(",");
    for hours in ["*/1", "0-23", "0-11,12-23", "12-23,0-11", &*listed] {
        let found = ticks(&format!("*/20 {hours} * * *"), "America/New_York", "2026-11-01T05:00:00Z", 6);
        assert_eq!(found, expected, "{hours}");
    }
    let most = ticks("*/20 1-23 * * *", "America/New_York", "2026-11-01T05:30:00Z", 2);
    assert_eq!(most, ["2026-11-01T05:40:00Z", "2026-11-01T07:00:00Z"]);
    // Half an hour back: Lord Howe, 5 April 2026.
    let expected = ["2026-04-04T14:30:00Z", "2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z"];
    let found = ticks("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:15:00Z", 3);
    assert_eq!(found, expected);
}

/// Over years with all their clock changes: the next tick is later than now, never repeats, and an hourly one
/// never pauses.
#[test]
fn the_next_tick_is_always_later_and_an_hourly_one_never_rests() {
    for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"] {
        for expression in ["30 * * * *", "0 2 * * *", "15 1,2,3 * * *"] {
            let schedule = Schedule::parse(expression, zone).unwrap();
            let mut now = at("2024-01-01T00:00:00Z");
            // Two years of hourly ticks, ten of daily ones.
            let end =
                at(if expression == "30 * * * *" { "2026-01-01T00:00:00Z" } else { "2034-01-01T00:00:00Z" });
            while now < end {
                let next = schedule.next_after(now, now).unwrap();
                assert!(next > now, "{zone} {expression} {now}");
                let gap = next.since(now).as_secs();
                assert!(expression != "30 * * * *" || gap <= 2 * 3_600, "{zone} {now} {gap}");
                assert!(gap <= 50 * 3_600, "{zone} {expression} {now} {gap}");
                now = next;
            }
        }
    }
}

#[test]
fn the_shortest_and_the_longest_are_schedules_and_an_offset_is_no_zone() {
    let is_read = |expression: &str, zone: &str| Schedule::parse(expression, zone).is_ok();
    for (expression, expected) in [
        ("@every 1s", true),
        ("@every 999ms", false),
        ("@every 87840h", true),
        ("@every 87840h1ms", false),
        (&*format!("{}0 * * * *", "0,".repeat(123)), true),
        (&*format!("{}10 * * * *", "0,".repeat(123)), false),
    ] {
        assert_eq!(is_read(expression, "UTC"), expected, "{expression}");
    }
    assert!(!is_read("* * * * *", "Etc/GMT-3") && !is_read("* * * * *", "Etc/GMT+3"));
}
