//! Short text of `doorbell bench`.

use crate::command::{Finished, measuring, run};

/// Checks that each line has at most 100 columns, and that the last lines are the sentence about all sizes.
#[track_caller]
fn check_short(arguments: &str, finished: &Finished, sizes: usize) {
    for line in finished.stdout.lines().chain(finished.stderr.lines()) {
        assert!(line.chars().count() <= 100, "{arguments}: {} columns: {line}", line.chars().count());
    }
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(lines.len() <= 1 + sizes + 5, "{arguments}: {}", finished.stdout);
    let sentence = lines[1 + sizes..].join(" ");
    for words in ["match their prediction", " limits ", "(-v: packets, CPU time, explanations)."] {
        assert!(sentence.contains(words), "{words:?} is missing after {arguments}: {}", finished.stdout);
    }
    for words in ["Packets sent", "CPU time per", "Conclusions of"] {
        assert!(!finished.stdout.contains(words), "{words:?} is for -v: {}", finished.stdout);
    }
}

#[test]
fn short_output_has_a_line_per_size_and_a_sentence() {
    for (arguments, sizes) in [
        ("lat -n 200 -s 16,4096,1048576", 3),
        ("bw -n 500 -s 16,4096,65536", 3),
        ("bw -n 200 --op request-response -s 64,4096", 2),
        ("lat -n 200 --op request-response -s 64", 1),
        ("load --request 200 --reply 4K --clients 3 --server-threads 1 -n 100", 1),
        ("lat -n 200 --op write -s 64", 1),
        ("bw -n 200 --op read -s 64,65536", 2),
        ("bw -n 200 --op fetch-add", 1),
        ("bw -n 300 -q 3 --single-receiver -s 16,5000 --verify", 2),
        ("bw -n 300 --protocol buffered-write-tail-read -s 16 --fault drop=0.02,seed=7", 1),
        ("bw -n 300 --transport uc --rate 20000 -s 16 --fault drop=0.2,seed=3", 1),
        ("bw -n 200 -s 64 -r 8 --slow-receiver-us 50 --no-credits", 1),
    ] {
        let finished = {
            let _one_at_a_time = measuring();
            run(&format!("bench {arguments}")).expect_status(0)
        };
        check_short(arguments, &finished, sizes);
    }
}

#[test]
fn short_output_of_a_simulation_names_its_testbed() {
    for (arguments, sizes) in [
        ("bw -n 2000 -s 16,4096,65536", 3),
        ("lat -n 100 -s 64", 1),
        ("bw -n 300 -q 8 --single-receiver -s 16", 1),
        ("bw -n 300 --op request-response -s 200", 1),
        ("load --request 200 --reply 64K --clients 24 -n 50", 1),
        ("lat -n 100 --op read -s 64", 1),
    ] {
        let finished = run(&format!("bench {arguments} --testbed connectx5-100g")).expect_status(0);
        check_short(arguments, &finished, sizes);
        assert!(finished.stderr.contains("simulated, testbed connectx5-100g in virtual time"), "{}", finished.stderr);
    }
    // Four clients with one operation each: by Little's law, the mean is four operations over their rate.
    let finished = run("bench --op read -s 64 --clients 4 -n 500 --testbed connectx5-100g").expect_status(0);
    assert!(finished.stderr.replace('\n', " ").contains("latency from post to completion"), "{}", finished.stderr);
    let table: Vec<Vec<&str>> = finished.stdout.lines().take(2).map(|it| it.split_whitespace().collect()).collect();
    assert_eq!(table[0][..6], ["bytes", "messages", "messages/s", "Gb/s", "median", "mean"]);
    let [rate, mean_us] = [2, 5].map(|column| table[1][column].parse::<f64>().expect("a number"));
    assert!((0.6..1.01).contains(&(mean_us * rate / 4e6)), "{mean_us} us at {rate} messages/s");
    // A station of the testbed limits long messages, not the window.
    let finished = run("bench bw -n 2000 -s 65536 --testbed connectx5-100g").expect_status(0);
    assert!(finished.stdout.replace('\n', " ").contains(" % busy) limits the rate"), "{}", finished.stdout);
}

#[test]
fn verbose_output_has_all_tables() {
    let _one_at_a_time = measuring();
    let stdout = run("bench bw -v -n 200 -s 16").expect_status(0).stdout;
    for words in ["Packets sent", "CPU time per", "Conclusions of", "match their prediction"] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    assert!(!stdout.contains("(-v:"), "{stdout}");
}
