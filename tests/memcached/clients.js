// Node's memcached client against a server on the port given.
'use strict';
const assert = require('assert');
const port = process.argv[2];
const server = `127.0.0.1:${port}`;

function load(name) {
  try {
    return require(name);
  } catch (error) {
    console.error(`SKIP: node's ${name}: ${error.message.split('\n')[0]}`);
    return null;
  }
}

async function memcached(Memcached) {
  const client = new Memcached(server, { timeout: 3000, retries: 0 });
  const call = (method, ...args) =>
    new Promise((resolve, reject) => client[method](...args, (error, result) => (error ? reject(error) : resolve(result))));
  assert.strictEqual(await call('set', 'js', 'value', 100), true);
  assert.strictEqual(await call('get', 'js'), 'value');
  assert.strictEqual(await call('get', 'js-absent'), undefined);
  const got = await call('gets', 'js');
  assert.strictEqual(await call('cas', 'js', 'new', got.cas, 100), true);
  assert.strictEqual(await call('cas', 'js', 'newer', got.cas, 100), false);
  await assert.rejects(call('add', 'js', 'x', 100));
  assert.strictEqual(await call('replace', 'js', 'replaced', 100), true);
  assert.strictEqual(await call('append', 'js', '!'), true);
  assert.strictEqual(await call('prepend', 'js', '!'), true);
  assert.deepStrictEqual(await call('getMulti', ['js', 'js-absent']), { js: '!replaced!' });
  assert.strictEqual(await call('set', 'jsn', 10, 100), true);
  assert.strictEqual(await call('incr', 'jsn', 5), 15);
  assert.strictEqual(await call('decr', 'jsn', 20), 0);
  assert.strictEqual(await call('touch', 'js', 50), true);
  assert.strictEqual(await call('del', 'js'), true);
  assert.strictEqual(await call('get', 'js'), undefined);
  const large = 'v'.repeat(900000);
  assert.strictEqual(await call('set', 'jslarge', large, 100), true);
  assert.strictEqual(await call('get', 'jslarge'), large);
  assert.ok((await call('stats'))[0].version.startsWith('1.6'));
  client.end();
}

(async () => {
  let failures = 0;
  for (const [name, test] of [['memcached', memcached]]) {
    const module = load(name);
    if (!module) continue;
    try {
      await test(module);
      console.log(`ok   node's ${name}`);
    } catch (error) {
      failures += 1;
      console.log(`FAIL node's ${name}: ${error && error.stack}`);
    }
  }
  process.exit(failures ? 1 : 0);
})();
