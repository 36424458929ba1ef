// A worker process of BullMQ, or its producer when the job has lanes. It takes the
// same job and says the same words as the workers in Go: see job.go.
import http from 'node:http';
import readline from 'node:readline';
import { Queue, Worker } from 'bullmq';

const job = JSON.parse(process.env.RAMPMETER_BACKLOG_JOB);
const connection = { url: job.redis, maxRetriesPerRequest: null };
const name = 'backlog';

try {
  if (job.lanes) await enqueue();
  else await work();
} catch (error) {
  process.stderr.write(error.message + '\n');
  process.exit(1);
}

async function enqueue() {
  const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
  let task = job.first;
  let jobs = [];
  for (const lane of job.lanes) {
    for (let i = 0; i < lane.tasks; i++) {
      jobs.push({ name: 'call', data: { task: task++, tenant: lane.name } });
      if (jobs.length === 1000) await queue.addBulk(jobs.splice(0));
    }
  }
  if (jobs.length > 0) await queue.addBulk(jobs);
  await queue.close();
}

async function work() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: job.concurrency });
  let word = { attempts: [], done: 0 };
  const worker = new Worker(name, async ({ data }) => {
    word.attempts.push(data.task);
    const began = Math.round((performance.timeOrigin + performance.now()) * 1000);
    await call(agent, `${job.api}?task=${data.task}&tenant=${data.tenant}&began=${began}`);
    word.done++;
  }, {
    connection,
    autorun: false,
    concurrency: job.concurrency,
    limiter: { max: job.limit.count, duration: job.limit.period / 1e6 },
  });
  await worker.waitUntilReady();

  const lines = readline.createInterface({ input: process.stdin });
  lines.once('line', () => worker.run());
  lines.once('close', async () => {
    await worker.close(true);
    process.exit(0);
  });
  say({ ready: true });
  setInterval(() => {
    if (word.attempts.length === 0 && word.done === 0) return;
    say(word);
    word = { attempts: [], done: 0 };
  }, 100);
}

function say(word) {
  process.stdout.write(JSON.stringify(word) + '\n');
}

function call(agent, url) {
  return new Promise((resolve, reject) => {
    http.get(url, { agent }, (response) => {
      response.resume();
      response.on('end', resolve);
    }).on('error', reject);
  });
}
