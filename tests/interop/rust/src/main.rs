//! rust-rdkafka told what to do over standard input; see ../../drivers.py.
//!
//! It knows version, produce, consume, create_topic, delete_topic, list_offsets and metadata.

use base64::{engine::general_purpose::STANDARD, Engine};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use serde_json::{json, Value};
use std::error::Error;
use std::future::Future;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

type Answer = Result<Value, Box<dyn Error>>;
const PATIENCE: Duration = Duration::from_secs(20);

/// Remembers where each record went, or why not.
#[derive(Clone, Default)]
struct Deliveries(Arc<Mutex<Vec<Result<i64, String>>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        let row = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.to_string()),
        };
        self.0.lock().unwrap().push(row);
    }
}

fn config(call: &Value) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", text(call, "bootstrap"));
    if let Some(settings) = call["settings"].as_object() {
        for (name, value) in settings {
            config.set(name, value.as_str().unwrap());
        }
    }
    config
}

fn text<'a>(call: &'a Value, name: &str) -> &'a str {
    call[name].as_str().unwrap_or("")
}

fn decode(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|text| STANDARD.decode(text).unwrap())
}

fn encode(value: Option<&[u8]>) -> Value {
    value.map_or(Value::Null, |bytes| json!(STANDARD.encode(bytes)))
}

fn produce(call: &Value) -> Answer {
    let deliveries = Deliveries::default();
    let producer: ThreadedProducer<Deliveries> =
        config(call).create_with_context(deliveries.clone())?;
    for row in call["rows"].as_array().unwrap() {
        let (key, value) = (decode(&row["key"]), decode(&row["value"]));
        let mut headers = OwnedHeaders::new();
        for header in row["headers"].as_array().unwrap() {
            let value = decode(&header[1]);
            headers = headers.insert(Header {
                key: header[0].as_str().unwrap(),
                value: value.as_ref(),
            });
        }
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(text(call, "topic"))
            .partition(0)
            .timestamp(row["timestamp"].as_i64().unwrap())
            .headers(headers);
        record.key = key.as_deref();
        record.payload = value.as_deref();
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.flush(PATIENCE)?;
    let rows = deliveries.0.lock().unwrap();
    Ok(json!(rows
        .iter()
        .cloned()
        .collect::<Result<Vec<_>, _>>()?))
}

fn consume(call: &Value) -> Answer {
    let mut config = config(call);
    config
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("check.crcs", "true");
    let consumer: BaseConsumer = config.create()?;
    let from = &call["from"][0];
    let (topic, partition) = (from[0].as_str().unwrap(), from[1].as_i64().unwrap() as i32);
    let mut assigned = TopicPartitionList::new();
    let time = call["time"].as_i64();
    let offset = Offset::Offset(time.or(from[2].as_i64()).unwrap());
    assigned.add_partition_offset(topic, partition, offset)?;
    if time.is_some() {
        assigned = consumer.offsets_for_times(assigned, PATIENCE)?;
    }
    consumer.assign(&assigned)?;
    let end = Instant::now() + PATIENCE;
    let mut rows = vec![];
    while rows.len() < call["count"].as_u64().unwrap() as usize && Instant::now() < end {
        let Some(message) = consumer.poll(Duration::from_millis(500)) else {
            continue;
        };
        let message = message?;
        let headers: Vec<Value> = message.headers().map_or(vec![], |headers| {
            headers
                .iter()
                .map(|header| json!([header.key, encode(header.value)]))
                .collect()
        });
        rows.push(json!({
            "offset": message.offset(),
            "timestamp": message.timestamp().to_millis(),
            "key": encode(message.key()),
            "value": encode(message.payload()),
            "headers": headers,
        }));
    }
    Ok(json!(rows))
}

fn admin(call: &Value) -> Answer {
    let client: AdminClient<DefaultClientContext> = config(call).create()?;
    let (topic, options) = (text(call, "topic"), AdminOptions::new());
    let results = match text(call, "op") {
        "create_topic" => {
            let new = NewTopic::new(topic, 2, TopicReplication::Fixed(1));
            wait(client.create_topics(&[new], &options))?
        }
        _ => wait(client.delete_topics(&[topic], &options))?,
    };
    for result in results {
        result.map_err(|(_, code)| code)?;
    }
    Ok(Value::Null)
}

fn look(call: &Value) -> Answer {
    let consumer: BaseConsumer = config(call).create()?;
    let topic = text(call, "topic");
    if text(call, "op") == "list_offsets" {
        return Ok(json!(consumer.fetch_watermarks(topic, 0, PATIENCE)?));
    }
    let found = consumer.fetch_metadata(None, PATIENCE)?;
    let topics: serde_json::Map<String, Value> = (found.topics().iter())
        .map(|topic| (topic.name().to_string(), json!(topic.partitions().len())))
        .collect();
    let brokers: Vec<i32> = found.brokers().iter().map(|broker| broker.id()).collect();
    Ok(json!({"brokers": brokers, "topics": topics}))
}

/// The librdkafka thread wakes us; no runtime is needed for that.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn main() {
    for line in std::io::stdin().lock().lines() {
        let call: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = match text(&call, "op") {
            "version" => Ok(json!(rdkafka::util::get_rdkafka_version().1)),
            "produce" => produce(&call),
            "consume" => consume(&call),
            "create_topic" | "delete_topic" => admin(&call),
            _ => look(&call),
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({"error": {"type": "rdkafka", "message": error.to_string()}}),
        };
        println!("{answer}");
        std::io::stdout().flush().unwrap();
    }
}
