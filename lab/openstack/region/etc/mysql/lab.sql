UPDATE keystone.endpoint SET url = REGEXP_REPLACE(url, '^http://[^:/]+', 'http://{{openstack}}');
